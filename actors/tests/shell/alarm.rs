//! An actor that often changes its mind about when to be woken keeps one timer, not all of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::stand::{Message, Stand, on_one_thread, settle};

#[test]
fn an_alarm_that_is_set_anew_leaves_nobody_asleep() {
    on_one_thread(true, async {
        let stand = Stand::open();
        for number in 1..=300 {
            // Earlier and later ones by turns.
            let span = Duration::from_secs(60 + u64::from(number * 7 % 50));
            let wake = Message::Wake(span, number);
            stand.handle.tell(wake).await.unwrap();
        }
        stand.settled().await;
        settle().await;
        assert_eq!(stand.env.asleep.load(Ordering::Relaxed), 1);
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(stand.notes(), [300]);
        assert_eq!(stand.env.asleep.load(Ordering::Relaxed), 0);
    });
}
