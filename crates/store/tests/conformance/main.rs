//! One suite for both databases: every case in `cases` runs against a fresh SQLite file and against
//! a fresh database of a private PostgreSQL cluster; and against both as the next release may leave them, with more
//! columns and tables.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod chains;
mod cluster;
mod earlier;
mod rows;
mod tls;
mod versions;

use cluster::Cluster;
use cove_store::StoreError;

/// Cases that use PostgreSQL at the same time.
const CASES_AT_ONCE: usize = 4;

macro_rules! suite {
    ($($group:ident :: $case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let folder = tempfile::tempdir_in("/var/tmp").unwrap();
                let store = crate::rows::open_sqlite(&folder.path().join("store.db")).await;
                crate::cases::$group::$case(store).await;
            })*
        }

        mod sqlite_of_the_next_release {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let folder = tempfile::tempdir_in("/var/tmp").unwrap();
                let path = folder.path().join("store.db");
                drop(crate::rows::open_sqlite(&path).await);
                crate::versions::expand_sqlite(&path);
                let store = crate::rows::open_sqlite(&path).await;
                crate::cases::$group::$case(store).await;
            })*
        }

        /// A cluster takes a second to make, so its cases share one; each has its own database.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn postgres_keeps_every_promise() {
            postgres(false).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn postgres_of_the_next_release_keeps_every_promise() {
            postgres(true).await;
        }

        async fn postgres(of_the_next: bool) {
            let cluster = Cluster::start();
            // All at once each would wait for the others for longer than an operation may take.
            let places = std::sync::Arc::new(tokio::sync::Semaphore::new(CASES_AT_ONCE));
            let mut running = tokio::task::JoinSet::new();
            let mut names = std::collections::HashMap::new();
            $({
                let address = cluster.database(stringify!($case)).await;
                let places = std::sync::Arc::clone(&places);
                let task = running.spawn(async move {
                    let _place = places.acquire().await.unwrap();
                    if of_the_next {
                        drop(rows::open(&address).await);
                        versions::expand_postgres(&address).await;
                    }
                    let store = rows::open(&address).await;
                    cases::$group::$case(store).await;
                });
                names.insert(task.id(), stringify!($case));
            })*
            let mut failed = Vec::new();
            while let Some(done) = running.join_next_with_id().await {
                if let Err(error) = done {
                    failed.push(names[&error.id()]);
                }
            }
            assert!(failed.is_empty(), "failed on PostgreSQL: {failed:?}");
        }
    };
}

suite!(
    tenants::organisations_have_unique_names_and_pages,
    tenants::tolerations_of_an_organisation_are_its_own,
    tenants::keys_are_found_by_hash_and_revoked_for_good,
    tenants::a_new_root_key_replaces_the_old_one,
    tenants::nobody_is_locked_out_by_a_revocation,
    tenants::an_organisation_is_removed_once_it_has_nothing,
    tenants::nothing_is_made_in_a_removed_organisation,
    tenants::making_something_and_removing_at_once_have_one_winner,
    sandboxes::names_are_unique_among_the_living_of_one_organisation,
    sandboxes::another_organisation_sees_nothing,
    sandboxes::lists_filter_and_page_while_rows_come_and_go,
    sandboxes::a_stale_writer_loses,
    sandboxes::changes_are_complete_and_only_what_was_asked,
    sandboxes::activity_only_moves_forward,
    sandboxes::the_moment_of_a_stop_is_kept_until_the_next_start,
    snapshots::snapshot_names_are_unique_among_the_living_of_one_organisation,
    snapshots::snapshots_hold_disk_and_give_it_back,
    snapshots::snapshots_are_listed_newest_first_by_sandbox_and_kind,
    snapshots::sandboxes_remember_what_they_grew_from,
    snapshots::one_key_takes_one_snapshot_and_never_stands_for_a_sandbox,
    quota::never_exceeded_by_concurrent_creates,
    quota::stopping_gives_back_and_starting_takes_again,
    quota::refusals_say_what_is_short,
    idempotency::concurrent_requests_with_one_key_make_one_sandbox,
    idempotency::a_key_is_bound_to_its_request,
    usage::charges_are_exact_for_any_series_of_samples,
    usage::first_figures_count_from_the_start_for_a_while,
    usage::periods_count_whole_hours,
    snapshots::their_disk_is_charged_from_beginning_to_end,
    builds::a_build_that_is_over_stays_as_it_is_and_old_ones_go,
    builds::steps_belong_to_an_organisation_and_those_used_longest_ago_go,
    templates::versions_count_up_and_tags_move,
    templates::numbers_of_versions_are_not_used_again,
    templates::names_that_are_gone_take_bounded_room_and_their_numbers_stay_used,
    templates::a_long_list_has_its_tags_and_ends_its_pages_by_bytes,
    templates::pinning_and_measuring_a_snapshot_at_once_do_not_wait_for_each_other,
    templates::a_snapshot_stays_while_a_template_begins_from_it,
    templates::pinning_and_deleting_a_snapshot_at_once_have_one_winner,
    templates::templates_and_tags_have_limits_and_repeats_are_known,
    volumes::volumes_are_found_by_their_own_organisation_only,
    volumes::volumes_hold_their_size_and_give_it_back,
    volumes::states_of_a_volume_change_from_where_they_are_only,
    volumes::a_mounted_volume_is_not_doomed_and_a_doomed_one_not_mounted,
    volumes::mounting_and_deleting_at_once_have_one_winner,
    volumes::what_volumes_hold_is_charged_to_their_organisation,
    objects::a_chunk_that_somebody_uses_is_never_condemned,
    objects::a_condemned_name_is_never_given_again,
    objects::a_later_upload_takes_over_and_gone_snapshots_take_none,
    objects::an_organisation_has_its_quota_and_key,
    objects::pending_uploads_are_shared_between_organisations,
    objects::uploads_and_collection_at_once_lose_nothing,
    hosts::lists_of_a_host_have_nothing_of_another,
    hosts::a_database_belongs_to_its_hosts,
    hosts::images_are_on_the_hosts_that_have_them,
    nodes::a_token_takes_one_host_in_and_refuses_the_rest,
    nodes::a_node_is_removed_only_when_it_is_empty,
    nodes::traits_of_a_node_change_and_stay_within_their_limits,
    events::readers_never_miss_what_commits_concurrently,
    events::positions_move_with_their_events,
    events::a_reader_that_wakes_up_late_changes_nothing,
    events::numbers_say_nothing_of_other_organisations,
    audit::records_page_newest_first,
    audit::chains_hold_with_writers_at_the_same_time,
    audit::a_journal_is_moved_exactly_once_however_often_it_is_given,
    audit::pruning_keeps_an_anchor_and_one_organisation_does_not_push_out_another,
    misc::image_grants_are_per_organisation_or_for_everybody,
    misc::images_of_their_own_count_to_organisations_disk_quotas_once,
    misc::image_jobs_are_per_organisation_and_end_once,
    shares::taking_a_share_back_makes_its_links_worthless_and_closes_the_port,
    shares::shared_ports_are_bounded_and_go_with_their_sandbox,
    secrets::versions_of_a_secret_follow_each_other,
    secrets::an_organisation_has_so_many_secrets_and_no_more,
    secrets::the_first_keys_of_an_organisation_stay,
    secrets::uses_of_a_secret_are_added_up,
    secrets::takers_at_once_get_no_more_of_a_budget_than_there_is,
    secrets::a_host_gives_back_no_more_than_it_took,
    secrets::days_take_bounded_room_and_a_clock_that_jumps_frees_none,
    ssh_keys::ssh_keys_are_found_by_fingerprint_and_belong_to_one_organisation,
    misc::settings_are_replaced,
    misc::time_that_passed_never_goes_back,
    misc::machines_whose_dates_differ_share_an_axis,
    misc::a_machine_that_was_away_continues_where_the_others_are,
    misc::an_outage_that_two_machines_share_moves_neither,
    misc::work_belongs_to_the_process_that_took_it_last,
    usage::dates_that_jump_change_no_charge,
    misc::sweeping_removes_only_what_is_past_its_time,
    misc::odd_texts_find_nothing_and_break_nothing,
);

#[tokio::test]
async fn postgres_survives_a_restart_of_the_server() {
    let mut cluster = Cluster::start();
    let address = cluster.database("restarts").await;
    let store = rows::open(&address).await;
    store.put_setting("before", "kept").await.unwrap();
    cluster.restart();
    // The connections in the pool are dead; the first calls may notice that the hard way.
    let deadline = std::time::Instant::now() + rows::DEADLINE;
    let found = loop {
        match store.setting("before").await {
            Err(StoreError::Unavailable(_)) if std::time::Instant::now() < deadline => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            found => break found.unwrap(),
        }
    };
    assert_eq!(found.as_deref(), Some("kept"));
}

#[tokio::test]
async fn addresses_that_cannot_be_honoured_are_refused() {
    for address in [
        "mysql://x/y",
        "postgres://localhost/x?sslmode=verify-ca",
        "postgres://localhost/x?sslmode=require&sslrootcert=/etc/hostname",
        "postgres://localhost/x?sslmode=verify-full&sslrootcert=/nonexistent",
        "postgres://localhost/x?sslmode=verify-full&sslrootcert=/etc/hostname",
        "postgres://localhost/x?sslmode=verify-full&sslrootcert=%zz",
        "postgres://%2Fvar%2Frun/x?sslmode=require",
        "postgres://localhost/x?sslcert=/x",
        "postgres://a b/?port=x",
    ] {
        let refused = cove_store::open(address).await.err().unwrap();
        assert!(
            matches!(refused, StoreError::Address(_)),
            "{address}: {refused}"
        );
    }
}
