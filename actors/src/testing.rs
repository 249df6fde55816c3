//! What tests of several actors share.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::sync::Mutex;

use crate::env::{Class, Files};
use crate::shell::{Actor, Cx, Handle, Stage, supervise};

#[expect(
    dead_code,
    reason = "shared with the shell's tests, which need all of it"
)]
#[path = "../tests/shell/stand.rs"]
pub mod stand;

/// Takes everything and says nothing.
pub struct Deaf<M>(PhantomData<fn(M)>);

impl<M: Send + 'static> Actor for Deaf<M> {
    type Message = M;
    const NAME: &'static str = "Deaf";

    fn handle(&mut self, _: M, _: &mut Cx<Self>) {}
}

pub fn deaf<M: Send + 'static>(stage: &Stage) -> Handle<M> {
    supervise(stage, Class::Node, "deaf", |_| Deaf(PhantomData))
}

/// Files that nothing befalls.
#[derive(Default)]
pub struct Memory(Mutex<BTreeMap<String, Vec<u8>>>);

impl Files for Memory {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let files = self.0.lock().unwrap();
        let found = files.get(path).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut files = self.0.lock().unwrap();
        files.insert(path.to_owned(), parts.concat());
        Ok(())
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.replace(path, &[contents])
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let files = self.0.lock().unwrap();
        let below = format!("{folder}/");
        let names = files.keys().filter_map(|path| path.strip_prefix(&below));
        Ok(names.map(str::to_owned).collect())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let below = format!("{path}/");
        let mut files = self.0.lock().unwrap();
        files.retain(|name, _| name != path && !name.starts_with(&below));
        Ok(())
    }

    fn settle(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}
