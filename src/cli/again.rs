//! A process that goes on by an amended topology: it replaces itself by one that begins again, under its own number, so that who supervises it
//! sees one process all the time.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::output::complain;
use super::{Common, Exit, Format};
use tombolo::observe::TOKEN_VARIABLE;

/// This program, also where its file was replaced by a newer one meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Begins `command` again with its options, on the same state, from the last committed round, and with its page at the same address. Returns
/// only if it cannot.
pub fn again(
    common: &Common,
    command: &str,
    options: Vec<OsString>,
    page: Option<&str>,
    file: &Path,
) -> Exit {
    let mut arguments = vec![OsString::from(command), "--resume".into()];
    arguments.extend(options);
    let page = page.and_then(|url| url.strip_prefix("http://")?.split_once("/#token="));
    if let Some((address, _)) = page {
        arguments.push(option("--dashboard", address));
    }
    if let Some(state) = &common.state {
        arguments.push(option("--state", state.as_os_str()));
    }
    if common.format == Format::Json {
        arguments.push("--format=json".into());
    }
    // A path that begins with a dash is no option.
    arguments.push("--".into());
    arguments.push(file.into());
    super::logs::flush();
    let name = std::env::args_os().next();
    let mut begin = Command::new(PROGRAM);
    begin.arg0(name.unwrap_or_else(|| "tombolo".into()));
    begin.args(arguments);
    if let Some((_, token)) = page {
        begin.env(TOKEN_VARIABLE, token);
    }
    let error = begin.exec();
    complain(&format!(
        "cannot begin again by the amended topology: {error}; start this again with --resume"
    ));
    Exit::Amended
}

/// One argument for a name and a value, so that a value which begins with a dash is no option.
pub fn option(name: &str, value: impl AsRef<std::ffi::OsStr>) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(value);
    option
}
