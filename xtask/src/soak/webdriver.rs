//! A browser as a test drives it: the W3C's WebDriver protocol, JSON over HTTP, spoken with `chromedriver`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A browser answers within that, or not at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `chromedriver` says of its port once it listens.
const STARTED: &str = "started successfully on port ";

/// A browser of its own, closed when dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one that shows nothing on a screen, with a window of this size.
    ///
    /// # Errors
    /// There is none here; the message says how to get one.
    pub fn start(width: u32, height: u32) -> Result<Self> {
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = driver
            .context("chromedriver does not start: apt-get install chromium chromium-driver")?;
        let output = driver.stdout.take().context("its output was asked for")?;
        let port = port(output);
        let mut browser = Browser {
            driver,
            port: 0,
            session: String::new(),
        };
        browser.port = port?;
        let mut arguments = vec![
            "--headless=new".to_owned(),
            "--disable-gpu".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        if Path::new("/proc/self/uid_map").exists() && is_root() {
            // Chromium refuses its sandbox to root.
            arguments.push("--no-sandbox".to_owned());
        }
        let wish = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
        }}});
        let made = browser.call("POST", "/session", Some(&wish))?;
        let session = made["sessionId"].as_str();
        browser.session = session.context("it names no session")?.to_owned();
        Ok(browser)
    }

    /// Goes to an address.
    ///
    /// # Errors
    /// It does not get there.
    pub fn open(&self, url: &str) -> Result<()> {
        self.tell("url", &json!({ "url": url })).map(drop)
    }

    /// What a script in the page returns.
    ///
    /// # Errors
    /// It throws.
    pub fn script(&self, script: &str) -> Result<Value> {
        self.tell("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Presses keys, one after the other, wherever the focus is.
    ///
    /// # Errors
    /// The browser does not take them.
    pub fn press(&self, keys: &[&str]) -> Result<()> {
        let steps: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let keyboard =
            json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": steps }] });
        self.tell("actions", &keyboard).map(drop)
    }

    /// A command of Chromium's own protocol.
    ///
    /// # Errors
    /// It is refused.
    pub fn chromium(&self, command: &str, parameters: &Value) -> Result<Value> {
        let body = json!({ "cmd": command, "params": parameters });
        self.tell("goog/cdp/execute", &body)
    }

    /// The picture of what the window shows, as a PNG.
    ///
    /// # Errors
    /// The browser makes none.
    pub fn window(&self) -> Result<Vec<u8>> {
        let path = format!("/session/{}/screenshot", self.session);
        let encoded = self.call("GET", &path, None)?;
        base64(encoded.as_str().context("it sends no picture")?)
    }

    fn tell(&self, command: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{command}", self.session);
        self.call("POST", &path, Some(body))
            .with_context(|| format!("the browser at {command:?}"))
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.map_or_else(String::new, Value::to_string);
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )?;
        let answer = answered(BufReader::new(stream))?;
        let mut answer: Value = serde_json::from_str(&answer).context("its answer is no JSON")?;
        let value = answer["value"].take();
        match value.get("error") {
            Some(error) => bail!("{error}: {}", value["message"]),
            None => Ok(value),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        let _ = self.call("DELETE", &path, None);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The port at which `chromedriver` says that it listens.
fn port(output: impl Read) -> Result<u16> {
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some((_, port)) = line.rsplit_once(STARTED) {
            let port = port.trim_end_matches('.');
            return port.parse().with_context(|| format!("no port in {line:?}"));
        }
    }
    bail!("chromedriver ended before it listened")
}

/// The body of an answer.
fn answered(mut stream: impl BufRead) -> Result<String> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            bail!("the answer has no body");
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(found) = line.strip_prefix("content-length:") {
            length = Some(found.trim().parse()?);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length.context("the answer does not say how long it is")?];
    stream.read_exact(&mut body)?;
    Ok(String::from_utf8(body)?)
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let uid = lines.find_map(|line| line.strip_prefix("Uid:"));
    uid.is_some_and(|uid| uid.split_whitespace().nth(1) == Some("0"))
}

/// Bytes from base64.
fn base64(text: &str) -> Result<Vec<u8>> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() * 3 / 4));
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|known| *known == letter);
        let value = value.with_context(|| format!("{:?} in base64", char::from(letter)))?;
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_and_without_padding() {
        assert_eq!(base64("aGVsbG8=").unwrap(), b"hello");
        assert_eq!(base64("aGVsbG8hIQ").unwrap(), b"hello!!");
        assert_eq!(base64("/+8=").unwrap(), [0xFF, 0xEF]);
        assert!(base64("a b").is_err());
    }

    #[test]
    fn the_port_is_found_in_what_the_driver_says() {
        let said = "Starting ChromeDriver 1 on port 0\nChromeDriver was started successfully on port 40123.\n";
        assert_eq!(port(said.as_bytes()).unwrap(), 40123);
        assert!(port(&b"Starting\n"[..]).is_err());
    }

    #[test]
    fn an_answer_is_as_long_as_it_says() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{\"a\"";
        assert_eq!(answered(text.as_bytes()).unwrap(), "{\"a\"");
        assert!(answered(&b"HTTP/1.1 200 OK\r\n\r\n"[..]).is_err());
    }
}
