//! Every shape, type, operation and collective, among threads and among processes: the bits of the calculation.

use std::time::Duration;

use tombolo_actors::step::{Background, Reduction, Step};
use tombolo_core::collective::{Collective, DType, Operation, Shape};
use tombolo_fabric::group::{Founding, Group};

use super::calculation::{Case, carried_out, every_case, expected};
use super::ranks::Ranks;

const WAIT: Duration = Duration::from_secs(60);

/// Runs one thread a rank.
fn among_threads<T: Send>(ranks: usize, run: impl Fn(Step) -> T + Sync) -> Vec<T> {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let names: Vec<String> = (0..ranks).map(|rank| format!("hq/{rank}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let founding = Founding::new(&folder, &names).unwrap();
    let invitations: Vec<_> = (1..ranks).map(|rank| founding.invitation(rank)).collect();
    std::thread::scope(|scope| {
        let joining = invitations
            .iter()
            .zip(&names[1..])
            .map(|(invitation, name)| {
                let (folder, run) = (&folder, &run);
                scope.spawn(move || {
                    let group = Group::join(folder, name, invitation, WAIT).unwrap();
                    run(Step::new(group))
                })
            });
        let joining: Vec<_> = joining.collect();
        let first = run(Step::new(founding.found(WAIT).unwrap()));
        let rest = joining.into_iter().map(|rank| rank.join().unwrap());
        [first].into_iter().chain(rest).collect()
    })
}

#[test]
fn threads_get_the_bits_of_the_calculation_whoever_comes_first() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        let cases = every_case(ranks);
        let found = among_threads(ranks, |mut step| {
            let rank = step.group().rank();
            let mut all = Vec::new();
            for (index, &case) in cases.iter().enumerate() {
                // Another one is late each time.
                if index % (3 * ranks) == rank {
                    std::thread::sleep(Duration::from_micros(300));
                }
                let bytes;
                (step, bytes) = carried_out(step, case, false).unwrap();
                all.push(bytes);
            }
            all
        });
        for (index, &case) in cases.iter().enumerate() {
            for (rank, expected) in expected(case, ranks).iter().enumerate() {
                assert!(
                    found[rank][index] == *expected,
                    "{case:?}: rank {rank} of {ranks}"
                );
            }
        }
    }
}

#[test]
fn an_all_reduce_of_own_memory_gives_the_bits_of_the_direct_shape() {
    // Around the border of one chunk of the pipeline, and several of them.
    let sizes = [1, 1000, 131_072, 131_073, 524_288 + 77];
    for ranks in [1, 2, 3, 4] {
        for (index, elements) in sizes.into_iter().enumerate() {
            let case = Case {
                collective: Collective::AllReduce,
                shape: Shape::Direct,
                dtype: DType::ALL[index % DType::ALL.len()],
                operation: Operation::ALL[index],
                elements,
            };
            let found = among_threads(ranks, |step| carried_out(step, case, true).unwrap().1);
            assert!(found == expected(case, ranks), "{case:?} of {ranks}");
        }
    }
}

#[test]
fn processes_get_the_bits_of_the_calculation() {
    for ranks in [2, 4] {
        let processes = Ranks::start(ranks);
        processes.found(WAIT);
        let mut hasher = vec![blake3::Hasher::new(); ranks];
        for case in every_case(ranks) {
            for (hasher, bytes) in hasher.iter_mut().zip(expected(case, ranks)) {
                hasher.update(&bytes);
            }
        }
        for rank in 0..ranks {
            processes.tell(rank, "cases");
        }
        for (rank, hasher) in hasher.into_iter().enumerate() {
            let expected = format!("cases {}", hasher.finalize());
            assert_eq!(processes.hear(rank), expected, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn many_small_operations_after_each_other_do_not_mix() {
    let sums = among_threads(3, |mut step| {
        let mut shared = step.allocate::<i64>(10).unwrap();
        let rank = step.group().rank() as i64;
        for turn in 0..20_000i64 {
            shared.values_mut().unwrap().fill(turn + rank);
            step.all_reduce(&mut shared, Reduction::SUM).unwrap();
            assert_eq!(shared.values().unwrap(), [3 * turn + 3; 10], "{turn}");
        }
    });
    assert_eq!(sums.len(), 3);
}

#[test]
fn several_in_flight_come_back_in_any_order_while_the_rank_computes() {
    among_threads(3, |mut step| {
        let rank = step.group().rank() as f32;
        let buffers: Vec<_> = (0..4)
            .map(|layer| {
                let mut shared = step.allocate::<f32>(1000 + layer).unwrap();
                shared.values_mut().unwrap().fill(rank + layer as f32);
                shared
            })
            .collect();
        let background = Background::new(step).unwrap();
        let mut started: Vec<_> = buffers
            .into_iter()
            .map(|shared| background.start(shared, Reduction::SUM))
            .collect();
        let own = background.start_own(vec![rank; 10], Reduction::MAX);
        for layer in (0..4).rev() {
            let shared = started.pop().unwrap().wait().unwrap();
            let expected = 3.0 + 3.0 * layer as f32;
            assert!(shared.values().unwrap().iter().all(|it| *it == expected));
        }
        assert_eq!(own.wait().unwrap(), [2.0; 10]);
        let mut step = background.finish();
        step.barrier().unwrap();
    });
}

#[test]
fn in_the_background_too_all_are_told_who_left() {
    let told = among_threads(2, |step| {
        let rank = step.group().rank();
        let background = Background::new(step).unwrap();
        if rank == 1 {
            return None;
        }
        let failed = background.start_own(vec![1.0f32; 10], Reduction::SUM);
        let after = background.start_own(vec![1.0f32; 10], Reduction::SUM);
        Some([failed.wait().unwrap_err(), after.wait().unwrap_err()].map(|it| it.rank()))
    });
    assert_eq!(told, [Some([Some(1); 2]), None]);
}
