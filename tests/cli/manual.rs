//! What is made from the command line's own description is what is kept: else `cargo xtask manual` makes it anew.

use std::collections::BTreeMap;
use std::path::Path;

use crate::fixture::{Workspace, pinned};

fn files(folder: &Path, below: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder.join(below)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{below}{name}");
        if folder.join(&path).is_dir() {
            files(folder, &format!("{path}/"), found);
        } else {
            let text = std::fs::read_to_string(folder.join(&path)).unwrap();
            found.insert(path, text);
        }
    }
}

#[test]
fn man_pages_completions_and_exit_codes_are_those_of_the_command_line() {
    let workspace = Workspace::new(&pinned(1));
    workspace.run("manual made").expect(0);
    let (mut made, mut kept) = (BTreeMap::new(), BTreeMap::new());
    files(&workspace.path().join("made"), "", &mut made);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/manual");
    files(&folder, "", &mut kept);
    let names = |of: &BTreeMap<String, String>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&made),
        names(&kept),
        "`cargo xtask manual` makes them anew"
    );
    for (name, text) in &made {
        assert!(
            kept[name] == *text,
            "docs/manual/{name} is another one: `cargo xtask manual` makes it anew"
        );
    }
    assert!(made.contains_key("man/tombolo-stop.1") && made.contains_key("completions/_tombolo"));
}
