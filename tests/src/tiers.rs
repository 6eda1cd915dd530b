//! What a tier does otherwise than containers do, test by test. The suites that run over all tiers leave these
//! out for that tier, by name and with the reason; docs/isolation.md has the same table.

/// A test, and why it does not hold for sandboxes with isolation gvisor. Names of the conformance suite are those of
/// its cases; others begin with their suite.
pub const GVISOR: &[(&str, &str)] = &[
    (
        "border::pid_1_and_the_pids_of_others_are_out_of_reach",
        "reads `NSpid`, which gVisor's /proc has not; its processes are its own, none of the host's has a number there",
    ),
    (
        "border::system_calls_that_reach_the_host_are_refused",
        "gVisor answers these calls itself, some with success; none of them reaches the host",
    ),
    (
        "border::mounts_cannot_be_changed",
        "gVisor lacks the newer mount calls (ENOSYS instead of EPERM) and lets a user namespace of its own mount",
    ),
    (
        "border::the_kernels_files_cannot_be_written",
        "looks for files of /proc that gVisor has not; those it has are its own",
    ),
    (
        "border::only_ordinary_sockets_can_be_made",
        "gVisor refuses with other error codes, and its netlink is its own",
    ),
    (
        "border::namespaces_cannot_be_made_or_entered",
        "namespaces can be made: they are gVisor's, and hold nothing of the host",
    ),
    (
        "border::chroot_tricks_end_at_the_sandboxs_own_root",
        "no trick leaves a chroot under gVisor; the test expects to end at the sandbox's root",
    ),
    (
        "border::devices_cannot_be_made",
        "device files can be made, and lead to gVisor's devices only, which has none of the host's",
    ),
    (
        "border::setuid_programs_give_no_more_than_the_bounding_set",
        "set-user-id programs get no rights at all",
    ),
    (
        "border::file_capabilities_give_no_more_than_the_bounding_set",
        "file capabilities cannot be set",
    ),
    (
        "border::sandboxes_have_uid_ranges_of_their_own",
        "gVisor shows its own users inside; the range on the host is checked by lifecycle::gvisor",
    ),
    (
        "border::every_file_of_the_kernel_that_can_be_read_is_on_the_list",
        "the list is of the host's kernel; gVisor's files are its own",
    ),
    (
        "border::what_tells_of_the_host_is_covered",
        "gVisor's files describe gVisor instead of being empty",
    ),
    (
        "border::lowered_oom_scores_do_not_last",
        "scores inside are gVisor's and change nothing on the host",
    ),
    (
        "guest::no_signal_from_inside_ends_or_stops_pid_1",
        "root inside can end PID 1, and with it its own sandbox",
    ),
    (
        "guest::garbage_and_floods_on_the_socket_do_not_keep_the_host_out",
        "gVisor does not show who connects: root inside counts as the host, and can use up the calls to its own sandbox",
    ),
    (
        "guest::a_command_that_stops_or_kills_everything_leaves_the_sandbox_usable",
        "gVisor does not show a stopped process as stopped, which the test waits for",
    ),
    (
        "bombs::a_fork_bomb_ends_at_the_limit_and_can_be_killed",
        "the bomb ends at the limit and takes the CPU time of its own sandbox, so that its guest answers late; the limit is checked by lifecycle::gvisor",
    ),
    (
        "bombs::shared_memory_counts_as_memory_and_has_an_end",
        "gVisor's tmpfs has no limit of inodes: a program that makes millions of files there ends its own sandbox",
    ),
    (
        "bombs::system_v_memory_left_behind_does_not_starve_pid_1",
        "System V objects are gVisor's memory: a program that fills it ends its own sandbox",
    ),
    (
        "floods::socket_buffers_count_as_memory",
        "socket buffers are gVisor's memory: a program that fills it ends its own sandbox",
    ),
    (
        "floods::a_terminal_bomb_leaves_the_neighbours_theirs",
        "terminals are gVisor's and take none of the host's; their number has no limit of its own",
    ),
    (
        "floods::an_inotify_bomb_leaves_the_neighbours_theirs",
        "watches are gVisor's and take none of the host's; their number has no limit of its own",
    ),
    (
        "floods::a_pipe_bomb_leaves_the_neighbours_theirs",
        "pipes are gVisor's and take none of the host's; their number has no limit of its own",
    ),
    (
        "everyday::sudo_and_su_change_the_user",
        "set-user-id programs get no rights: use `user` of the request instead of sudo",
    ),
    (
        "everyday::figures_are_the_sandboxs_own",
        "lists of CPUs are written in gVisor's way (`0-0`); total memory and the number of CPUs are the sandbox's own",
    ),
    (
        "everyday::links_owners_and_modes_work",
        "owner and mode that were changed by one name of a file are not seen by its other names at once",
    ),
    (
        "everyday::large_files_have_holes_and_offsets",
        "holes are there, and count as used in what gVisor reports of a file",
    ),
    (
        "everyday::locks_maps_and_watches_work",
        "files have no user attributes",
    ),
    (
        "lifecycle::observing::figures_of_a_sandbox_follow_what_it_does",
        "`pids` of the figures counts the host's tasks, gVisor's own among them",
    ),
    (
        "lifecycle::resizing::cpu_memory_and_pids_follow_up_and_down_and_survive_engine_and_sandbox",
        "`pids` and the number of CPUs cannot be changed while the sandbox runs; lifecycle::gvisor changes the rest",
    ),
    (
        "lifecycle::resizing::limits_below_use_are_refused_by_name_and_change_nothing",
        "asks for less memory than gVisor needs, which is refused before the use is looked at",
    ),
    (
        "lifecycle::sleeping::a_paused_one_outlives_the_engine_and_the_host",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::sleeping::a_snapshot_of_a_paused_one_has_its_processes_for_nothing",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::sleeping::memory_that_does_not_come_back_is_kept_and_the_disk_offered",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::sleeping::pausing_and_resuming_never_loses_or_repeats_a_count",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::sleeping::processes_are_forked_rolled_back_and_made_part_of_images",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::sleeping::what_cannot_be_captured_goes_on_and_says_so",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::snapshots::settings_stay_those_in_force_now_and_stopped_ones_stay_stopped",
        "changes `pids` while the sandbox runs",
    ),
    (
        "lifecycle::stopping::a_killed_pid_1_means_stopped_with_a_reason_and_a_sandbox_that_starts_again",
        "expects one process on the host; lifecycle::gvisor kills each of the tier's",
    ),
    (
        "lifecycle::storage::reading_from_the_disk_is_held_to_its_limit",
        "reads with `O_DIRECT`, which gVisor does not pass on; lifecycle::gvisor reads what the host has not cached",
    ),
    (
        "network::closed::captures_and_copies_refuse_by_their_own_policy",
        "gVisor's memory cannot be captured here",
    ),
    (
        "network::closed::refused_names_reach_the_log_and_follow_the_policy",
        "names are not refused inside; queries leave by the interface and are refused on the host",
    ),
    (
        "network::forks::fifty_memory_forks_get_their_own_bytes_policy_and_log_lines",
        "gVisor's memory cannot be captured here",
    ),
    (
        "network::policy::a_sandbox_has_the_network_it_was_created_with_and_it_changes_live",
        "expects no interface without a policy; under gVisor it is always there, and network::gvisor looks what it reaches",
    ),
    (
        "network::policy::root_inside_cannot_touch_interfaces_routes_or_raw_packets",
        "root inside can write `ip_forward` of gVisor's own network, and in a user namespace of its own change the interface there; the rules on the host hold (network::gvisor)",
    ),
    (
        "network::secrets::a_placeholder_becomes_the_value_in_its_place_alone_and_answers_are_scrubbed",
        "its client enters the network namespace from the host, which gVisor has emptied; another test of network::secrets shakes hands from inside",
    ),
    (
        "network::secrets::copies_and_neighbours_cannot_use_what_they_learn",
        "its client enters the network namespace from the host, which gVisor has emptied; another test of network::secrets shakes hands from inside",
    ),
    (
        "network::secrets::revoking_a_secret_cuts_what_used_it_and_a_dead_terminator_is_replaced",
        "its client enters the network namespace from the host, which gVisor has emptied; another test of network::secrets shakes hands from inside",
    ),
    (
        "lifecycle::volumes::a_full_volume_hurts_only_who_writes_to_it",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::a_killed_engine_finds_volumes_and_their_users_again",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::a_volume_is_a_whole_file_system_and_nothing_of_the_pool",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::copies_stay_as_they_were_and_count_what_they_came_with",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::files_of_a_volume_are_served_by_a_guest_that_has_nothing_else",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::nobody_mounts_a_volume_of_another_organisation",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::links_at_a_mount_point_lead_nowhere_but_into_the_sandbox",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::sandboxes_share_a_volume_in_plain_directories",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::sandboxes_share_a_volume_that_outlives_them",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::set_id_programs_and_devices_on_a_volume_are_powerless",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes::volumes_never_share_bytes_through_a_sandbox",
        "volumes are refused",
    ),
    (
        "lifecycle::volumes_at_rest::captured_processes_find_the_volume_as_it_is_then",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::volumes_at_rest::memory_comes_back_with_the_rights_that_it_had",
        "gVisor's memory cannot be captured here",
    ),
    (
        "lifecycle::volumes_at_rest::nothing_that_has_something_of_a_volume_open_is_captured",
        "gVisor's memory cannot be captured here",
    ),
];

/// The tier that a suite runs over: `COVE_TIER`, or containers.
pub fn under_test() -> String {
    std::env::var("COVE_TIER").unwrap_or_else(|_| cove_model::DEFAULT_ISOLATION.into())
}

/// Why a test does not hold for a tier, if it does not.
pub fn left_out(tier: &str, test: &str) -> Option<&'static str> {
    let rows = match tier {
        "gvisor" => GVISOR,
        _ => &[],
    };
    let row = rows.iter().find(|(name, _)| *name == test);
    row.map(|(_, reason)| *reason)
}
