//! What a supervisor of services is told: that a node is there, that it leaves, and that it still lives. The protocol is that of `sd_notify(3)`: one
//! datagram a word, to the socket that the environment names. Without one nothing is said.

use std::convert::Infallible;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tombolo::federation::Pulse;

/// A supervisor that asks for a sign of life more often gets it so often.
const PERIOD_LEAST: Duration = Duration::from_millis(100);

/// Whom to tell.
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often to say that all is well.
    period: Option<Duration>,
}

impl Notify {
    /// What the environment says.
    pub fn of_environment() -> Self {
        let read = |name: &str| std::env::var(name).ok();
        let socket = read("NOTIFY_SOCKET").and_then(|name| match open(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, name, "the supervisor cannot be told anything");
                None
            }
        });
        let mine = read("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let period = read("WATCHDOG_USEC").filter(|_| mine && socket.is_some());
        Notify {
            socket,
            period: period.and_then(|micros| watch(&micros)),
        }
    }

    /// Says that all is well for as long as it is, if anybody wants to know.
    pub async fn watch(&self, pulse: Option<Pulse>) -> Infallible {
        let (Some(period), Some(mut pulse)) = (self.period, pulse) else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(period).await;
            match pulse.beats() {
                true => self.say("WATCHDOG=1"),
                false => tracing::error!(
                    "an arbiter has had no turn for {period:?}: the supervisor is not told that all is well"
                ),
            }
        }
    }

    /// The node is there.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// The node leaves.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, words: &str) {
        if let Some((socket, to)) = &self.socket
            && let Err(error) = socket.send_to_addr(words.as_bytes(), to)
        {
            tracing::debug!(%error, words, "the supervisor was not told");
        }
    }
}

/// Half of the time after which a service is taken for dead.
fn watch(micros: &str) -> Option<Duration> {
    let micros = micros.parse::<u64>().ok().filter(|micros| *micros > 0)?;
    Some((Duration::from_micros(micros) / 2).max(PERIOD_LEAST))
}

fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let to = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, to))
}

/// Nothing in a status may look like another word.
fn line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_the_protocol_has_them_at_a_path_and_at_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("@tombolo-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        for (listener, name) in [(at_path, path.to_str().unwrap()), (at_name, &name)] {
            listener
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let notify = Notify {
                socket: Some(open(name).unwrap()),
                period: None,
            };
            notify.ready("hq/gate listens\nSTOPPING=1");
            notify.say("WATCHDOG=1");
            notify.stopping();
            let mut said = Vec::new();
            for _ in 0..3 {
                let mut buffer = [0; 256];
                let bytes = listener.recv(&mut buffer).unwrap();
                said.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
            }
            let expected = [
                "READY=1\nSTATUS=hq/gate listens STOPPING=1",
                "WATCHDOG=1",
                "STOPPING=1",
            ];
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn a_sign_of_life_comes_twice_in_the_time_after_which_it_is_missed() {
        assert_eq!(watch("30000000"), Some(Duration::from_secs(15)));
        assert_eq!(watch("1"), Some(PERIOD_LEAST));
        assert_eq!(watch("0"), None);
        assert_eq!(watch("soon"), None);
    }
}
