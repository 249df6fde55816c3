//! What is in the journal once a contribution is acknowledged.

use super::*;
use crate::checkpoint::Term;
use crate::link::Shelf;
use crate::slab::Pool;
use crate::testing::stand::{on_one_thread, stage};
use crate::testing::{Memory, deaf};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;

/// Two numbers.
const SENT: &[u8] = &[0, 0, 128, 63, 0, 0, 0, 64];

/// A coordinator whose own domain's contribution is on the shelf.
fn setup(files: Arc<dyn Files>, sent: &'static [u8]) -> Setup {
    let (stage, env, _) = stage();
    assert!(env.files.set(files).is_ok());
    let shelf = Shelf::default();
    shelf.put(Object::Contribution(3, 0), Bytes::from_static(sent));
    Setup {
        run: Hash([1; 32]),
        layout: Layout::new([("weight", vec![sent.len() / 4])]).unwrap(),
        trainer: Arc::new(|_: &NodeId| Err("nobody trains here".into())),
        shelf,
        pool: Pool::default(),
        node: deaf(&stage),
        aggregate: deaf(&stage),
        checkpoint: deaf(&stage),
        record: deaf(&stage),
        term: Term::default(),
        links: BTreeMap::new(),
        wires: BTreeMap::new(),
        board: Arc::default(),
        durable: Arc::default(),
        stage,
    }
}

fn contribution(sent: &[u8]) -> Contribution {
    Contribution {
        round: 3,
        epoch: 1,
        attempt: 0,
        domain: "hq".parse().unwrap(),
        members: vec!["hq/a".parse().unwrap()],
        weight: 10.0,
        exponent: 3,
        chunks: vec![Hash::of_bytes(sent)],
        encoding: Encoding::default(),
    }
}

/// A coordinator that died between the journal and the note leaves bytes behind that nobody was promised. If the gateway died, too, the next
/// contribution of that attempt is another one, and the journal has to hold that.
#[test]
fn the_journal_holds_what_is_acknowledged_and_not_what_was_there_before() {
    let before: [&[&[u8]]; 4] = [&[&[7; 8]], &[&[7; 8], &[7; 8]], &[&SENT[..4]], &[]];
    for left in before {
        on_one_thread(true, async {
            let (files, contribution) = (Arc::new(Memory::default()), contribution(SENT));
            let setup = setup(files.clone(), SENT);
            let journal = checkpoint::journal(&contribution, 0);
            for (index, left) in left.iter().enumerate() {
                let left = [Bytes::copy_from_slice(left)];
                checkpoint::write_chunk(files.as_ref(), &journal, index, &left).unwrap();
            }
            let written = write_down(&setup, &(contribution.clone(), None)).await;
            assert_eq!(written, Ok(()));
            assert!(checkpoint::is_kept(files.as_ref(), &contribution, 0));
            let kept = checkpoint::read_chunk(files.as_ref(), &journal, 0);
            assert_eq!(kept.unwrap(), SENT, "there was {left:?}");
        });
    }
}

/// A disk on which nothing fits any more.
struct Full;

impl Files for Full {
    fn read(&self, _: &str) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn replace(&self, _: &str, _: &[&[u8]]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn create(&self, path: &str, contents: &[u8]) -> std::io::Result<()> {
        self.replace(path, &[contents])
    }

    fn list(&self, _: &str) -> std::io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn remove(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }

    fn settle(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}

/// The coordinator ends the round over its own disk, and waits for another gateway where the sender is to blame.
#[test]
fn who_is_to_blame_for_what_is_not_in_the_journal_is_told() {
    on_one_thread(true, async {
        let whole = contribution(SENT);
        let full = setup(Arc::new(Full), SENT);
        let error = write_down(&full, &(whole.clone(), None)).await;
        assert!(
            matches!(&error, Err(NoteError::Disk(reason)) if reason.contains("contribution-hq.0/000000.f32")),
            "{error:?}"
        );
        let other = setup(Arc::new(Memory::default()), &SENT[..4]);
        let error = write_down(&other, &(whole, None)).await;
        assert!(matches!(error, Err(NoteError::Bytes(_))), "{error:?}");
    });
}
