use super::*;

fn total(parts: &[Vec<usize>]) -> Vec<usize> {
    let mut rows = parts.concat();
    rows.sort_unstable();
    rows
}

fn training_rows() -> Vec<usize> {
    Digits::training_rows().collect()
}

fn kinds(part: &[usize]) -> usize {
    let digits = Digits::load().unwrap();
    let labels: BTreeSet<u8> = part.iter().map(|row| digits.label(*row)).collect();
    labels.len()
}

#[test]
fn every_training_row_is_dealt_out_once_and_everybody_gets_one() {
    for nodes in [1, 2, 9, 100, 719] {
        let parts = [
            iid(nodes, &mut Rng::new(1)),
            shards(nodes, &mut Rng::new(1)).unwrap(),
            dirichlet(nodes, 0.5, &mut Rng::new(1)).unwrap(),
            dirichlet(nodes, 0.01, &mut Rng::new(2)).unwrap(),
            dirichlet(nodes, f64::MIN_POSITIVE, &mut Rng::new(3)).unwrap(),
            dirichlet(nodes, 1e300, &mut Rng::new(4)).unwrap(),
        ];
        for parts in parts {
            assert_eq!(parts.len(), nodes);
            assert_eq!(total(&parts), training_rows());
            assert!(parts.iter().all(|part| !part.is_empty()), "{nodes}");
        }
    }
}

#[test]
fn whole_clients_are_dealt_out_evenly_and_by_the_seed() {
    // 40 clients of 1 to 40 rows.
    let mut next = 0..;
    let clients: BTreeMap<String, Vec<usize>> = (1..=40)
        .map(|size| (format!("c{size}"), next.by_ref().take(size).collect()))
        .collect();
    let of = |seed| whole_clients(4, &clients, &mut Rng::new(seed)).unwrap();
    let parts = of(1);
    assert_eq!(total(&parts), (0..820).collect::<Vec<_>>());
    for rows in clients.values() {
        let home = parts.iter().find(|part| part.contains(&rows[0])).unwrap();
        assert!(rows.iter().all(|row| home.contains(row)));
    }
    let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert!(
        lengths.iter().all(|len| (165..=245).contains(len)),
        "{lengths:?}"
    );
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    assert_eq!(
        whole_clients(41, &clients, &mut Rng::new(1)),
        Err(PartitionError::TooFewClients {
            nodes: 41,
            clients: 40
        })
    );
}

#[test]
fn parts_follow_the_seed_and_only_the_seed() {
    let of = |seed| dirichlet(9, 0.5, &mut Rng::new(seed)).unwrap();
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    assert_ne!(iid(9, &mut Rng::new(1)), iid(9, &mut Rng::new(2)));
}

#[test]
fn iid_parts_are_even_and_mixed_and_shards_are_skewed() {
    let even = iid(9, &mut Rng::new(5));
    assert!(even.iter().all(|part| matches!(part.len(), 159 | 160)));
    assert!(even.iter().all(|part| kinds(part) == CLASSES));
    let skewed = shards(9, &mut Rng::new(5)).unwrap();
    assert!(skewed.iter().all(|part| kinds(part) <= 4));
}

#[test]
fn a_small_alpha_is_skewed_and_a_large_one_even() {
    let spread = |alpha| {
        let parts = dirichlet(9, alpha, &mut Rng::new(11)).unwrap();
        let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
        lengths.iter().max().unwrap() - lengths.iter().min().unwrap()
    };
    assert!(spread(0.1) > 200, "{}", spread(0.1));
    assert!(spread(1e6) < 20, "{}", spread(1e6));
    // At the end of the range each kind of digit still lies on a node drawn for it.
    let smallest = dirichlet(100, f64::from_bits(1), &mut Rng::new(11)).unwrap();
    let large: Vec<usize> = smallest
        .iter()
        .map(Vec::len)
        .filter(|len| *len > 50)
        .collect();
    assert!(large.len() > 5, "{large:?}");
    assert!(smallest.iter().filter(|part| part.len() == 1).count() >= 90);
}

#[test]
fn gamma_variates_have_the_mean_and_variance_of_their_distribution() {
    let mut rng = Rng::new(3);
    for alpha in [0.3, 1.0, 4.0] {
        let drawn: Vec<f64> = (0..40_000)
            .map(|_| log_gamma_variate(alpha, &mut rng).exp())
            .collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let squares: f64 = drawn.iter().map(|x| (x - mean).powi(2)).sum();
        let variance = squares / drawn.len() as f64;
        assert!((mean / alpha - 1.0).abs() < 0.04, "{alpha}: mean {mean}");
        assert!(
            (variance / alpha - 1.0).abs() < 0.1,
            "{alpha}: variance {variance}"
        );
    }
}

#[test]
fn more_nodes_than_parts_are_refused() {
    assert_eq!(
        at_most(1439, 1),
        Err(PartitionError::TooManyNodes {
            nodes: 1439,
            rows: 1438,
            nodes_max: 1438
        })
    );
    assert!(at_most(1438, 1).is_ok() && at_most(719, 2).is_ok() && at_most(720, 2).is_err());
}

#[test]
fn a_rows_file_is_kept_in_its_order_or_refused_naming_node_and_row() {
    let (a, b): (NodeId, NodeId) = ("hq/a".parse().unwrap(), "hq/b".parse().unwrap());
    let nodes = [&a, &b];
    let file =
        |of_b: &[usize]| BTreeMap::from([(a.clone(), vec![3, 0]), (b.clone(), of_b.to_vec())]);
    assert_eq!(checked(&nodes, &file(&[1795, 0])), Ok(file(&[1795, 0])));
    let node = || b.clone();
    for (of_b, error) in [
        (&[][..], PartitionError::NoRows { node: node() }),
        (
            &[1797],
            PartitionError::UnknownRow {
                node: node(),
                row: 1797,
            },
        ),
        (
            &[0, 9],
            PartitionError::TestRow {
                node: node(),
                row: 9,
            },
        ),
        (
            &[5, 6, 5],
            PartitionError::RepeatedRow {
                node: node(),
                row: 5,
            },
        ),
    ] {
        assert_eq!(checked(&nodes, &file(of_b)), Err(error));
    }
    assert_eq!(
        checked(&nodes[..1], &file(&[1])),
        Err(PartitionError::UnknownNode { node: node() })
    );
    let mut missing = file(&[1]);
    missing.remove(&b);
    assert_eq!(
        checked(&nodes, &missing),
        Err(PartitionError::NoRows { node: node() })
    );
}
