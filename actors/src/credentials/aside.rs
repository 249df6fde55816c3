//! Lists of revoked certificates whose root is not pinned here, or not yet: kept for the moment in which it is.

use std::collections::{BTreeMap, VecDeque};

use tombolo_core::ids::NodeId;
use tombolo_core::wire::RevocationList;

/// How many: each root of a rollover may bring one, and 32 of the largest are 2 MiB.
const ASIDE_MAX: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub struct Aside {
    lists: VecDeque<(NodeId, RevocationList)>,
}

impl Aside {
    /// Keeps a list. If there are too many, of whoever has sent most the oldest goes: nobody crowds another's out.
    pub fn keep(&mut self, from: NodeId, list: RevocationList) {
        if self.lists.iter().any(|(_, known)| *known == list) {
            return;
        }
        self.lists.push_back((from, list));
        if self.lists.len() <= ASIDE_MAX {
            return;
        }
        let mut by: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for (from, _) in &self.lists {
            *by.entry(from).or_default() += 1;
        }
        let most = by.into_iter().max_by_key(|(_, count)| *count);
        let most = most.map(|(from, _)| from.clone());
        let oldest = self
            .lists
            .iter()
            .position(|(from, _)| Some(from) == most.as_ref());
        self.lists.remove(oldest.unwrap_or_default());
    }

    /// All of them, the oldest first.
    pub fn take(&mut self) -> Vec<(NodeId, RevocationList)> {
        self.lists.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(number: u8) -> RevocationList {
        RevocationList::try_from(vec![number; 3]).unwrap()
    }

    #[test]
    fn nobody_crowds_another_s_list_out() {
        let [honest, hostile]: [NodeId; 2] = ["hq/a", "hq/b"].map(|name| name.parse().unwrap());
        let mut aside = Aside::default();
        aside.keep(honest.clone(), list(0));
        aside.keep(hostile.clone(), list(0));
        for number in 1..200 {
            aside.keep(hostile.clone(), list(number));
        }
        let kept = aside.take();
        assert_eq!(kept.len(), ASIDE_MAX);
        assert_eq!(kept[0], (honest, list(0)));
        assert_eq!(kept[ASIDE_MAX - 1], (hostile, list(199)));
        assert!(aside.take().is_empty());
    }
}
