//! Roots that come, go and come back.

use super::*;

#[test]
fn a_root_that_was_retired_may_be_told_again_and_vouches_again() {
    let (node, keys) = (n("port/gate"), Keys(n("port/gate")));
    let domain = node.domain();
    let (der, paper) = (Der(root(&domain)), Der(certificate(&node)));
    let tells = Leaf::Root {
        domain: domain.clone(),
        certificate: der.clone(),
    };
    let retires = Leaf::Retired {
        domain: domain.clone(),
        certificate: der,
    };
    let certifies = Leaf::Certificate {
        node: node.clone(),
        certificate: paper,
    };
    let mut account = Account::default();
    let mut take = |leaf: &Leaf| account.take(&leaf.line(), &keys).map(drop);
    take(&begun()[0]).unwrap();
    take(&tells).unwrap();
    take(&tells).unwrap_err();
    take(&retires).unwrap();
    take(&retires).unwrap_err();
    take(&certifies).unwrap_err();
    take(&tells).unwrap();
    take(&tells).unwrap_err();
    take(&certifies).unwrap();
    assert!(account.trusts(&domain, &root(&domain)));
}
