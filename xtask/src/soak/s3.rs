//! The coordinator's records on an S3-compatible server of somebody else's: moto's, over plain HTTP, behind a door that can be shut for uploads.
//!
//! A run writes there; in its middle every upload is refused for a while; it ends with the model of a run in a folder. Then one object is not what it
//! was: it is refused by name, and the state before it can still be had.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::{Figures, Settings, Variables, cargo, figures, now, object, peers};

pub const VARIABLES: Variables = &[("TOMBOLO_ROUNDS", "12"), ("TOMBOLO_REFUSED_S", "30")];

const ENVIRONMENT: &str = "s3";

const BUCKET: &str = "harbour";

/// Rounds that end before uploads are refused.
const BEFORE: u64 = 3;

/// The longest head of a request that the door reads.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Builds ours with object stores, and installs the server.
///
/// # Errors
/// It does not compile.
pub fn prepare(root: &Path) -> Result<()> {
    // How fast it is nobody asks here: the usual build, with the feature.
    let arguments = "build --package tombolo --bin tombolo --features object-store-cloud";
    let mut command = Command::new(cargo());
    let status = command
        .args(arguments.split(' '))
        .current_dir(root)
        .status();
    ensure!(
        status.context("cargo does not start")?.success(),
        "it does not compile"
    );
    peers::prepare(root, ENVIRONMENT);
    Ok(())
}

/// One line: what the run, the outage and the changed object came to.
///
/// # Errors
/// Something is not as it should be.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let python = peers::python(root, ENVIRONMENT);
    let python = python.context("without the environment there is nothing to show")?;
    let rounds = settings.number("TOMBOLO_ROUNDS")?;
    let refused = settings.number("TOMBOLO_REFUSED_S")?;
    ensure!(
        rounds > BEFORE + 1,
        "TOMBOLO_ROUNDS={rounds}: expected more than {}",
        BEFORE + 1
    );
    let folder = root.join("target/s3");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let place = |store: &str| {
        format!(
            "[federation]\nname = \"harbour\"\nrounds = {rounds}\nsync_every = 200\n[run]\nkernels = \"portable\"\n\
             [round]\nquorum = \"all\"\ndeadline = \"10min\"\nclose_limit = \"60s\"\n[model]\ntrainer = \"digits-softmax\"\n{store}\
             [[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n[[domain]]\nname = \"plant\"\nnodes = [\"gate\", \"c\"]\n"
        )
    };
    let url = format!("s3://{BUCKET}/runs/one");
    let on_s3 = format!("[checkpoint]\nstore = \"{url}\"\n");
    fs::write(folder.join("s3.toml"), place(&on_s3))?;
    fs::write(folder.join("plain.toml"), place(""))?;

    let server = Server::start(&python)?;
    server.ask("PUT", &format!("/{BUCKET}"), b"")?;
    let door = Door::open(&server.address)?;
    let tombolo = Tombolo {
        program: program(root),
        folder: folder.clone(),
        endpoint: format!("http://{}", door.address),
    };
    let plain = tombolo.run("run plain.toml --state plain", 0)?;
    let expected = finished(&plain.lines)?["model_hash"].clone();

    let began = now();
    let outage = tombolo.through_an_outage(&door, Duration::from_secs(refused))?;
    let end = finished(&outage)?;
    ensure!(
        end["committed"] == rounds && end["aborted"] == 0 && end["model_hash"] == expected,
        "a run in a folder ends with model {expected}, this one so: {end:?}"
    );
    let wall = now().saturating_duration_since(began).as_secs_f64();
    let turned_away = door.turned_away.load(Ordering::SeqCst);
    ensure!(
        turned_away > 0,
        "nothing was uploaded while uploads were refused"
    );
    tombolo.run("checkpoint verify s3.toml --state s3", 0)?;

    let newest = format!("states/{rounds:06}-");
    let key = server.key_with(&[&newest, "model.safetensors"])?;
    let path = format!("/{BUCKET}/{key}");
    let mut bytes = server.ask("GET", &path, b"")?;
    *bytes.last_mut().context("the model is empty")? ^= 1;
    server.ask("PUT", &path, &bytes)?;
    let found = tombolo.run("checkpoint verify s3.toml --state s3", 1)?;
    ensure!(
        found.errors.contains(&newest),
        "it is not named: {}",
        found.errors
    );
    let resumed = tombolo.run("run s3.toml --state s3 --resume", 1)?;
    ensure!(
        resumed.errors.contains(&newest),
        "a run goes on from it, or does not name it: {}",
        resumed.errors
    );
    let restored = tombolo.run(
        "checkpoint restore s3.toml --state s3 --to model.safetensors",
        0,
    )?;
    let round = restored
        .lines
        .iter()
        .find_map(|line| line["round"].as_u64());
    ensure!(
        round == Some(rounds - 1),
        "restored was {round:?}: {:?}",
        restored.lines
    );
    let model = fs::metadata(folder.join("model.safetensors"))?.len();
    Ok(vec![object(json!({
        "server": "moto",
        "rounds": rounds,
        "refused_s": refused,
        "uploads_turned_away": turned_away,
        "committed": end["committed"],
        "aborted": end["aborted"],
        "model_of_a_run_in_a_folder": true,
        "changed_object_named": true,
        "restored_round": round,
        "restored_bytes": model,
        "wall_s": (wall * 10.0).round() / 10.0,
    }))])
}

fn program(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    target.join("debug/tombolo")
}

fn finished(lines: &[Figures]) -> Result<&Figures> {
    let found = lines.iter().find(|line| line["event"] == "finished");
    found.with_context(|| format!("the run did not finish: {:?}", lines.last()))
}

/// Our program, and where it finds the server.
struct Tombolo {
    program: PathBuf,
    folder: PathBuf,
    endpoint: String,
}

/// What it said.
struct Said {
    lines: Vec<Figures>,
    errors: String,
}

impl Tombolo {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments.split(' '))
            .args(["--format", "json"])
            .current_dir(&self.folder)
            .env("AWS_ACCESS_KEY_ID", "harbour")
            .env("AWS_SECRET_ACCESS_KEY", "harbour")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT", &self.endpoint)
            .env("AWS_ALLOW_HTTP", "true");
        command
    }

    fn run(&self, arguments: &str, code: i32) -> Result<Said> {
        let output = self.command(arguments).output();
        let output = output.context("tombolo does not start")?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.code() == Some(code),
            "tombolo {arguments}: {}, expected exit code {code}: {errors}",
            output.status
        );
        Ok(Said {
            lines: lines.lines().filter_map(figures).collect(),
            errors,
        })
    }

    /// A run over whose middle every upload is refused for that long.
    fn through_an_outage(&self, door: &Door, span: Duration) -> Result<Vec<Figures>> {
        let mut command = self.command("run s3.toml --state s3");
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = Killed(child.context("tombolo does not start")?);
        let output = child.0.stdout.take().context("its output was asked for")?;
        let (mut lines, mut rounds) = (Vec::new(), 0);
        for line in BufReader::new(output).lines() {
            let Some(line) = figures(&line?) else {
                continue;
            };
            rounds += u64::from(line["event"] == "round");
            if rounds == BEFORE && line["event"] == "round" {
                door.refuse_for(span);
            }
            lines.push(line);
        }
        let status = child.0.wait()?;
        ensure!(
            status.success(),
            "the run ended with {status}: {:?}",
            lines.last()
        );
        Ok(lines)
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server.
struct Server {
    _process: Killed,
    address: String,
}

impl Server {
    fn start(python: &Path) -> Result<Server> {
        let child = Command::new(python)
            .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let mut process = Killed(child.context("moto does not start")?);
        let said = process
            .0
            .stderr
            .take()
            .context("its words were asked for")?;
        let mut said = BufReader::new(said).lines();
        let address = said.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, address) = line.split_once("Running on http://")?;
            Some(address.trim().to_owned())
        });
        let address = address.context("moto says no address")?;
        spawn(move || said.for_each(drop));
        Ok(Server {
            _process: process,
            address,
        })
    }

    /// One request, without a signature: it asks for none.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address)?;
        // Whatever the host, a path names the bucket.
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: AWS4-HMAC-SHA256 Credential=harbour/20260101/us-east-1/s3/aws4_request\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = head_end(&answer).context("no answer")?;
        let head = String::from_utf8_lossy(&answer[..end]);
        ensure!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head}");
        Ok(answer.split_off(end))
    }

    /// The only object with all of that in its name.
    fn key_with(&self, parts: &[&str]) -> Result<String> {
        let listed = self.ask("GET", &format!("/{BUCKET}?list-type=2"), b"")?;
        let listed = String::from_utf8_lossy(&listed);
        let keys = listed.split("<Key>").skip(1);
        let keys = keys.filter_map(|rest| Some(rest.split_once("</Key>")?.0));
        let found: Vec<&str> = keys
            .filter(|key| parts.iter().all(|part| key.contains(part)))
            .collect();
        match found[..] {
            [key] => Ok(key.to_owned()),
            _ => bail!("{} objects are named {parts:?}: {listed}", found.len()),
        }
    }
}

/// Where a request or an answer begins behind its head.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some(end + 4)
}

/// What stands between our program and the server: one request a connection, and none that uploads while it is shut.
struct Door {
    address: String,
    shut: Arc<AtomicBool>,
    turned_away: Arc<AtomicU64>,
}

impl Door {
    fn open(server: &str) -> Result<Door> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let door = Door {
            address: listener.local_addr()?.to_string(),
            shut: Arc::default(),
            turned_away: Arc::default(),
        };
        let (server, shut) = (server.to_owned(), door.shut.clone());
        let turned_away = door.turned_away.clone();
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (server, shut) = (server.clone(), shut.clone());
                let turned_away = turned_away.clone();
                spawn(move || {
                    // Who breaks off in the middle asks again.
                    let _ = pass(client, &server, &shut, &turned_away);
                });
            }
        });
        Ok(door)
    }

    fn refuse_for(&self, span: Duration) {
        self.shut.store(true, Ordering::SeqCst);
        let shut = self.shut.clone();
        spawn(move || {
            pause(span);
            shut.store(false, Ordering::SeqCst);
        });
    }
}

fn pass(
    mut client: TcpStream,
    server: &str,
    shut: &AtomicBool,
    turned_away: &AtomicU64,
) -> Result<()> {
    let mut request = Vec::new();
    let mut piece = [0; 8192];
    let end = loop {
        let read = client.read(&mut piece)?;
        ensure!(read > 0 && request.len() < HEAD_BYTES_MAX, "no request");
        request.extend_from_slice(&piece[..read]);
        if let Some(end) = head_end(&request) {
            break end;
        }
    };
    let head = String::from_utf8(request[..end].to_vec())?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    let mut left = (end + length.unwrap_or(0)).saturating_sub(request.len());
    while left > 0 {
        let read = client.read(&mut piece)?;
        ensure!(read > 0, "half a request");
        request.extend_from_slice(&piece[..read]);
        left = left.saturating_sub(read);
    }
    let uploads = head.starts_with("PUT ") || head.starts_with("POST ");
    if uploads && shut.load(Ordering::SeqCst) {
        turned_away.fetch_add(1, Ordering::SeqCst);
        client.write_all(
            b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        )?;
        return Ok(client.shutdown(Shutdown::Write)?);
    }
    let mut there = TcpStream::connect(server)?;
    let (line, rest) = head.split_once("\r\n").context("no head")?;
    let kept = rest
        .trim_end()
        .split("\r\n")
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let kept: Vec<&str> = kept.collect();
    let head = format!(
        "{line}\r\n{}\r\nconnection: close\r\n\r\n",
        kept.join("\r\n")
    );
    there.write_all(head.as_bytes())?;
    there.write_all(&request[end..])?;
    std::io::copy(&mut there, &mut client)?;
    Ok(client.shutdown(Shutdown::Write)?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server between two programs, on real time"
)]
fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

#[expect(clippy::disallowed_methods, reason = "an outage lasts its time")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(door: &Door, request: &str) -> String {
        let mut stream = TcpStream::connect(&door.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_door_that_is_shut_turns_uploads_away_and_lets_everything_else_through() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        spawn(move || {
            for mut client in server.incoming().map_while(Result::ok) {
                let mut request = [0; 4096];
                let read = client.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                assert!(request.contains("connection: close"), "{request}");
                client
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .unwrap();
            }
        });
        let door = Door::open(&address).unwrap();
        let put = "PUT /a HTTP/1.1\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc";
        let get = "GET /a HTTP/1.1\r\nhost: b\r\n\r\n";
        assert!(answer(&door, put).ends_with("ok"));
        door.shut.store(true, Ordering::SeqCst);
        assert!(answer(&door, put).starts_with("HTTP/1.1 503"));
        assert!(answer(&door, get).ends_with("ok"));
        door.shut.store(false, Ordering::SeqCst);
        assert!(answer(&door, put).ends_with("ok"));
        assert_eq!(door.turned_away.load(Ordering::SeqCst), 1);
    }
}
