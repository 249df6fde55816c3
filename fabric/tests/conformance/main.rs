//! One suite, every provider: what a verbs provider must do, told in the order of a queue pair's life.
//!
//! A new provider adds one line to `on_every_provider` and one constructor to `World`. What needs a device of hardware is skipped where
//! there is none, with the reason on standard error; `cargo xtask vm` runs it on a device of software.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "a provider is also used from several threads"
)]

mod faults;
mod fixture;
mod lives;
mod reads;
mod regions_and_grants;

macro_rules! on_every_provider {
    ($($file:ident: $($case:ident)*;)*) => {
        mod shm { $($(#[test] fn $case() { crate::$file::$case(&crate::fixture::World::shm()); })*)* }
        mod memory { $($(#[test] fn $case() { crate::$file::$case(&crate::fixture::World::memory()); })*)* }
        mod ibverbs { $($(#[test] fn $case() { crate::fixture::World::ibverbs().iter().for_each(crate::$file::$case); })*)* }
    };
}

on_every_provider! {
    regions_and_grants:
        a_region_is_zeroed_and_page_aligned_and_seen_as_bytes_or_elements
        impossible_regions_are_refused_with_limit_and_need
        a_wrong_token_or_name_is_denied
        a_revoked_peer_is_denied_and_its_queue_pair_dies
        a_new_grant_ends_the_old_one
        an_endpoint_of_another_provider_or_with_a_bad_address_is_refused
        names_are_bounded
    ;
    reads:
        a_region_and_parts_of_it_arrive_as_written
        what_the_owner_writes_later_is_read_later
        a_read_of_nothing_succeeds_but_needs_a_key
        long_reads_are_split_by_read_and_refused_by_post
        completions_come_in_the_order_of_posting
        a_full_queue_gives_the_read_back_and_stays_usable
        read_wants_the_queue_pair_for_itself
    ;
    faults:
        an_unknown_key_kills_the_queue_pair
        the_key_of_a_dropped_region_reaches_nothing_even_if_it_was_read_before
        ranges_outside_either_side_fail_also_if_their_sum_overflows
        a_remote_region_that_lies_about_its_length_is_found_out
        scratch_of_another_device_is_refused
        an_error_flushes_what_follows_and_what_is_posted_later
        a_failed_queue_pair_gives_scratch_back
    ;
    lives:
        many_regions_can_be_read_again_and_again
        nine_devices_read_each_other_on_nine_threads
        a_closed_device_is_gone_for_its_peers_and_its_regions_stay_its_owners
        a_queue_pair_does_not_outlive_its_own_device
        nothing_is_left_when_all_is_dropped
    ;
}
