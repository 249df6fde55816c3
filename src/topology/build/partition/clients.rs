//! The partition by a column of the data that says whose each row is: a writer, a patient, a machine.

use std::collections::BTreeMap;
use std::path::Path;

use super::{ROWS, is_test_row};
use crate::bounded::{self, ReadError};
use crate::topology::FILE_BYTES_MAX;
use crate::topology::build::domains::Domains;
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::{nearest, shown};
use crate::topology::value::Section;

/// Bytes of a client's name.
const NAME_BYTES_MAX: usize = 64;

/// The column that numbers rows.
const ROW: &str = "row";

/// Reads the file; the rows of each client by name, test rows left out.
pub(super) fn clients(
    section: &Section,
    folder: &Path,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> Option<BTreeMap<String, Vec<usize>>> {
    let Some(name) = section.text("file") else {
        if !section.is_wrong("file") {
            mistakes.push(
                Mistake::at(&section.span, "the partition \"clients\" has no `file`")
                    .label("needs `file`")
                    .help("add file = \"clients.csv\", with the columns row,client"),
            );
        }
        return None;
    };
    let column = section.text("column").unwrap_or("client");
    let path = super::super::resolved(folder, name);
    let read = bounded::read(&path, FILE_BYTES_MAX).map_err(|error| {
        let help = match error {
            ReadError::TooLarge(_) => "each of 1797 rows has one line",
            _ => "relative paths start at the topology's folder",
        };
        (error.to_string(), help.to_owned())
    });
    let place = section.place("file");
    let clients = match read.and_then(|bytes| parse(&bytes, column)) {
        Ok(clients) => clients,
        Err((why, help)) => {
            let message = format!("the file of clients {} {why}", path.display());
            mistakes.push(Mistake::at(&place, message).label("this file").help(help));
            return None;
        }
    };
    if domains.known && clients.len() < domains.count {
        let message = format!(
            "{} gives training rows to {} clients, too few for {} nodes",
            shown(name),
            clients.len(),
            domains.count
        );
        mistakes.push(
            Mistake::at(&place, message)
                .label("in this file")
                .help("a client's rows stay together on one node: declare fewer nodes"),
        );
        return None;
    }
    Some(clients)
}

type Wrong = (String, String);

fn parse(bytes: &[u8], column: &str) -> Result<BTreeMap<String, Vec<usize>>, Wrong> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| wrong("is not UTF-8 text", "save the file as UTF-8"))?;
    let mut lines = text.lines().enumerate();
    let (_, head) = lines
        .next()
        .ok_or_else(|| wrong("is empty", "begin it with the line row,client"))?;
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    let find = |wanted: &str| {
        let found = names.iter().position(|name| *name == wanted);
        found.ok_or_else(|| {
            let help = match nearest(wanted, names.iter().copied()) {
                Some(near) => format!("did you mean column = {near:?}?"),
                None => format!("begin the file with a line of names: {ROW},{wanted}"),
            };
            (format!("has no column {:?}", shown(wanted)), help)
        })
    };
    let (row_at, client_at) = (find(ROW)?, find(column)?);
    let mut clients: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut seen = vec![false; ROWS];
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let refuse =
            |what: String, help: &str| (format!("{what} (line {})", index + 1), help.into());
        if cells.len() != names.len() || line.contains('"') {
            let what = format!(
                "has {} columns where its first line has {}",
                cells.len(),
                names.len()
            );
            return Err(refuse(
                what,
                "one line a row, cells without quotes and commas",
            ));
        }
        let row = cells[row_at].parse().ok().filter(|row| *row < ROWS);
        let row: usize = row.ok_or_else(|| {
            let what = format!("names the row {:?}", shown(cells[row_at]));
            refuse(what, "rows are numbers of the whole file, from 0 to 1796")
        })?;
        if std::mem::replace(&mut seen[row], true) {
            let what = format!("gives the row {row} twice");
            return Err(refuse(what, "give each row to one client, once"));
        }
        let client = cells[client_at];
        if client.is_empty() || client.len() > NAME_BYTES_MAX {
            let what = format!("names the client {:?}", shown(client));
            return Err(refuse(what, "a client's name has 1 to 64 bytes"));
        }
        if !is_test_row(row) {
            clients.entry(client.to_owned()).or_default().push(row);
        }
    }
    Ok(clients)
}

fn wrong(why: &str, help: &str) -> Wrong {
    (why.to_owned(), help.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_by_client_and_test_rows_left_out() {
        let text = "row,ward,client\n0,x,ada\n 3 , y , bo \n4,x,ada\n\n2,x,ada\n";
        let clients = parse(text.as_bytes(), "client").unwrap();
        let expected = BTreeMap::from([("ada".to_owned(), vec![0, 2]), ("bo".to_owned(), vec![3])]);
        assert_eq!(clients, expected);
        assert_eq!(parse(text.as_bytes(), "ward").unwrap()["x"], [0, 2]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, said) in [
            ("", "is empty"),
            ("row,who\n", "has no column \"client\""),
            (
                "row,client\n1\n",
                "has 1 columns where its first line has 2 (line 2)",
            ),
            ("row,client\n1,\"a,b\"\n", "has 3 columns"),
            ("row,client\n1,a\nx,a\n", "names the row \"x\" (line 3)"),
            ("row,client\n1797,a\n", "names the row \"1797\""),
            ("row,client\n1,a\n1,b\n", "gives the row 1 twice (line 3)"),
            ("row,client\n1,\n", "names the client \"\""),
        ] {
            let (why, _) = parse(text.as_bytes(), "client").unwrap_err();
            assert!(why.contains(said), "{why}");
        }
        assert!(parse(b"\xff", "client").is_err());
    }
}
