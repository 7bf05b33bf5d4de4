"""The promises of docs/failures.md, row by row, and the tests that show them; see test_promises.py."""

FAILURES = {
    # ---- while the job runs
    "a rank is killed, or ends with `os._exit()`": [
        "mp/test_lost_ranks.py::test_a_killed_rank_is_named_on_every_survivor",
        "mp/test_lost_ranks.py::test_a_rank_that_vanishes_without_its_exit_handlers_is_lost",
        "mp/test_lost_ranks.py::test_a_killed_rank_is_seen_although_its_fork_workers_live",
        "mp/test_injected_faults.py::test_a_rank_killed_anywhere_in_an_operation_is_named",
        "mpi/test_jobs.py::test_a_killed_rank_hangs_nobody_and_leaves_nothing",
        "mpi/test_jobs.py::test_a_death_is_told_to_every_host_by_those_who_see_it_whichever_rank_it_is",
    ],
    "several ranks die at once, or one more while the others see it": [
        "frameworks/test_disagreements.py::"
        "test_two_ranks_that_die_at_once_and_one_more_while_the_others_see_it_leave_nobody_waiting",
        "mp/test_lost_ranks.py::test_a_rank_that_ends_because_it_has_seen_a_loss_is_not_taken_for_the_cause",
    ],
    "an uncaught exception ends a rank, also one in a hook or a compressor; a rank calls `abort(why)`": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "mp/test_lost_ranks.py::test_an_exception_in_the_users_code_within_a_step_is_told_to_all_ranks",
        "mp/test_lost_ranks.py::test_the_rank_that_raised_is_blamed_and_not_those_that_fell_over_it",
        "inproc/test_errors.py::test_an_abort_reaches_every_rank_with_its_reason",
        "unit/api/test_endings.py::test_the_others_hear_of_it_before_threads_and_handlers_end",
    ],
    "a call of `sys.exit()`, `exit()` or `quit()` with a code other than 0 ends a rank": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "unit/api/test_endings.py::test_the_others_hear_of_it_before_threads_and_handlers_end",
    ],
    "a rank's process ends with such a code in another way (`raise SystemExit(3)`)": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
    ],
    "a rank calls `shutdown()`, or its program ends (`sys.exit(0)`), while others wait for it": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "inproc/test_errors.py::test_leaving_fails_what_is_pending_on_the_others",
        "frameworks/numpy/test_jobs.py::test_what_is_pending_when_a_rank_shuts_down_fails_there_and_on_the_others",
        "frameworks/numpy/test_jobs.py::test_operations_that_nobody_waits_for_keep_no_process_from_ending",
    ],
    "a rank is stopped (SIGSTOP) or hangs": [
        "mp/test_lost_ranks.py::test_a_stopped_rank_is_reported_and_then_given_up",
        "mp/test_injected_faults.py::test_a_rank_stopped_anywhere_in_an_operation_is_given_up",
        "cpp/control/stall_test.cc::Silence.OfAStoppedRankIsReportedAndEndsTheSet",
        "mpi/test_jobs.py::test_a_rank_that_stays_stopped_is_named_on_every_rank_of_every_host",
    ],
    "a stopped rank continues in time": [
        "mp/test_jobs.py::test_a_rank_that_stops_for_a_moment_is_only_slow",
        "cpp/control/stall_test.cc::Silence.ARankThatIsStoppedForAWhileAndGoesOnCostsNothing",
        "mpi/test_jobs.py::test_the_lowest_ranks_of_all_hosts_may_be_stopped_for_longer_than_a_host_may_be_silent",
        "cpp/net/failure/host_monitor_test.cc::HostMonitor.AStoppedRankIsNoLossWhileAnyRankOfItsHostRunsAndAllKnowIt",
    ],
    "a host, or the network to it, is gone": [
        "mpi/test_hosts.py::test_a_connection_that_is_cut_is_an_error_on_every_rank_that_names_both_ends",
        "cpp/net/failure/host_monitor_test.cc::HostMonitor.AHostOfWhichNothingIsHeardIsLostAndBothEndsAreNamed",
    ],
    "a native call holds the GIL of a rank": [
        "frameworks/test_waiting.py::test_collectives_end_while_a_rank_holds_the_interpreter_in_native_code",
        "mp/test_lost_ranks.py::test_a_rank_that_holds_the_interpreter_is_reported_by_itself_too_and_then_given_up",
    ],
    "a rank is slow again and again": [
        "frameworks/test_waiting.py::test_waiting_for_a_late_rank_takes_no_processor_time_and_is_noted",
        "mp/test_disagreement.py::test_a_rank_that_comes_late_gets_a_report_and_no_error",
        "unit/observe/test_traces.py::test_time_is_divided_among_its_parts",
    ],
    "there are more ranks than cores": [
        "mp/test_jobs.py::test_eight_ranks_share_two_cores",
        "frameworks/numpy/test_jobs.py::test_twenty_four_processes_meet_and_sum",
    ],
    "a tensor is submitted on some ranks only": [
        "mp/test_disagreement.py::test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails",
        "cpp/control/stall_test.cc::StallOf.IsReportedOnEveryRankWithWhoHasAndWhoLacksIt",
        "cpp/control/stall_test.cc::StallOf.FailsAfterTheLimitOnTheRanksThatHaveIt",
    ],
    "the same, and it is certain that it never completes (the missing rank has left, or itself waits only for tensors "
    "that the others lack)": [
        "mp/test_disagreement.py::test_waits_that_nothing_can_end_fail_at_once_on_every_rank",
        "mp/test_disagreement.py::test_two_ranks_that_wait_for_each_other_fail_though_others_compute",
        "mp/test_disagreement.py::test_ranks_wait_for_a_thread_that_computes_or_loads_data_before_its_first_operation",
        "mp/test_disagreement.py::test_a_wait_with_a_time_limit_is_no_deadlock",
        "frameworks/tensorflow/test_errors.py::test_ranks_that_wait_for_each_other_in_functions_learn_it_at_once",
        "cpp/base/stillness_test.cc::Stillness.IsWhenAllThreadsSleepUntilAnotherOneWakesThem",
    ],
    "shape, type, operation, root, scale, priority, compression or group members differ": [
        "inproc/test_mismatches.py::test_a_mismatch_names_both_ranks_and_both_values_on_all_ranks_and_the_job_goes_on",
        "mp/test_disagreement.py::test_every_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on",
        "cpp/control/mismatch_test.cc::Mismatch.NamesBothRanksAndBothValues",
        "cpp/control/mismatch_test.cc::Mismatch.ADisagreementAboutACachedOperationIsFoundWithinTwoRounds",
        "inproc/test_priorities.py::test_different_priorities_are_a_mismatch_and_the_job_goes_on",
    ],
    "a rank expects another number of rows than it gets (`recvcounts`), or `recvcounts` of `reducescatterv` differ": [
        "conformance/test_conformance.py::test_every_operation_gives_what_numpy_gives",
        "cpp/data/row_layout_test.cc::PlacedRowsTest.AWrongExpectationOfOneRankFailsOnAllRanksAndTheLaneGoesOn",
    ],
    "lists of counts or displacements do not fit one rank's tensor or the number of ranks": [
        "conformance/test_conformance.py::test_every_operation_gives_what_numpy_gives",
        "cpp/data/row_layout_test.cc::PlacedRowsTest.ListsThatAreWrongByThemselvesFailOnAllRanks",
        "mp/test_disagreement.py::test_bad_splits_are_this_rank_s_own_mistake",
    ],
    "parts of a result overlap": [
        "conformance/test_conformance.py::test_every_operation_gives_what_numpy_gives",
        "cpp/data/row_layout_test.cc::PlanReceive.RefusesPartsThatOverlapAndListsThatAreWrong",
    ],
    "one tensor is in different groups on two ranks": [
        "inproc/test_groups.py::test_a_tensor_that_is_in_a_group_on_one_rank_alone_fails_on_all_with_both",
        "cpp/control/group_test.cc::Group.ATensorInDifferentGroupsOnTwoRanksFailsAtOnce",
    ],
    "one member of a group is wrong": [
        "inproc/test_groups.py::test_the_error_of_any_member_is_that_of_the_group",
        "inproc/test_groups.py::test_a_member_that_is_in_flight_refuses_the_group_and_frees_the_others",
        "inproc/test_groups.py::test_a_member_that_cannot_be_submitted_submits_none",
        "inproc/test_groups.py::test_a_member_that_no_backend_can_reduce_fails_the_group_on_all_ranks",
    ],
    "calls without a name come in another order on some rank": [
        "frameworks/test_names.py::test_ranks_whose_automatic_names_do_not_match_get_an_error_and_go_on",
        "frameworks/test_names.py::test_unnamed_calls_meet_by_operation_and_set_whatever_lies_between_them",
        "sim/test_properties.py::test_what_all_members_submit_completes",
    ],
    "two threads of one name call operations without a name": [
        "frameworks/test_names.py::test_threads_count_their_unnamed_calls_each_by_itself",
        "frameworks/tensorflow/test_names.py::test_threads_count_their_unnamed_eager_calls_each_by_itself",
    ],
    "JAX: an operation runs inside `shard_map` or `pmap`, over several devices of a rank": [
        "frameworks/jax/test_transformations.py::test_operations_belong_to_the_rank_and_not_to_each_of_its_devices",
    ],
    "JAX: arrays have other sizes than a compiled or differentiated `allgather` or `alltoall` was traced with": [
        "frameworks/jax/test_transformations.py::test_sizes_that_a_compiled_function_foresees",
    ],
    "ranks wait for each other in a circle over several process sets": [
        "inproc/test_process_sets.py::test_a_circle_of_waits_over_two_sets_is_reported_and_ended_by_the_stall_limit",
        "inproc/test_process_sets.py::test_crossed_sets_in_opposite_orders_without_waiting",
        "frameworks/test_process_sets.py::test_crossed_sets_on_processes_with_threads_that_wait",
    ],
    "ranks add different process sets, or add where others remove": [
        "frameworks/test_dynamic_process_sets.py::test_ranks_that_name_different_sets_are_told_and_the_job_goes_on",
        "cpp/runtime/runtime_sets_test.cc::RuntimeSets.ThatRanksDisagreeAboutAreNotMade",
    ],
    "a member cannot join a process set that is added": [
        "frameworks/test_dynamic_process_sets.py::test_a_set_that_a_member_cannot_join_is_added_nowhere",
        "mp/test_jobs.py::test_too_few_files_for_a_set_are_an_error_on_every_rank_and_the_set_can_be_added_later",
    ],
    "an operation uses a process set that does not contain the rank, or is not registered": [
        "inproc/test_process_sets.py::test_who_is_not_in_a_set_is_told_so_and_so_is_who_names_none",
        "frameworks/test_dynamic_process_sets.py::test_what_is_pending_on_a_set_that_is_removed_fails",
    ],
    "the root of an operation has joined": [
        "inproc/test_join.py::test_operations_with_a_root_need_one_that_has_data",
    ],
    "ranks call `join` with different `divide_by`": [
        "inproc/test_join.py::test_ranks_that_join_with_different_wishes_are_named_and_the_job_goes_on",
    ],
    "a message's two sides differ in element type or number of elements": [
        "inproc/test_messages.py::test_a_mismatch_is_named_on_both_ranks_and_the_next_message_arrives",
        "cpp/runtime/p2p/engine_test.cc::PointToPoint.ASmallMessageThatDoesNotFitFailsOnItsReceiverAlone",
    ],
    "a message has no receiver, or no sender": [
        "cpp/runtime/p2p/endings_test.cc::PointToPoint.WhatWaitsForTooLongIsReportedAndThenFails",
        "inproc/test_messages.py::test_what_was_sent_is_there_after_its_sender_has_left_and_nothing_else_comes",
    ],
    "a name is submitted again while it is in flight": [
        "inproc/test_errors.py::test_a_name_in_flight_is_refused_and_the_first_lives",
        "mp/test_disagreement.py::test_a_name_submitted_twice_is_refused_and_the_first_completes",
    ],
    "torch: gradients of two optimizers are in flight together, and the optimizers share a parameter or a name": [
        "frameworks/torch/optimizer/test_several_optimizers.py::"
        "test_equal_names_and_the_very_same_parameters_are_an_error_that_says_whose",
    ],
    "torch: optimizers, groups or numbers of parameters differ at `broadcast_optimizer_state`, or each rank has a "
    "share of the state": [
        "frameworks/torch/optimizer/test_broadcast_state.py::test_ranks_whose_groups_are_not_the_roots_are_told_on_all_ranks",
    ],
    "torch: the program adds parameters to an optimizer's groups between `synchronize()` and `step()`": [
        "frameworks/torch/optimizer/test_param_groups.py::"
        "test_parameters_that_come_after_the_gradients_were_reduced_are_refused_on_all_ranks",
    ],
    "a name is used for another shape, type or operation once its operation is over": [
        "inproc/test_cache.py::test_a_name_may_mean_something_else_later_and_is_negotiated_once_for_it",
        "cpp/control/mismatch_test.cc::Mismatch.AChangedRequestIsRenegotiatedOnce",
    ],
    "a name has more than 4,096 bytes, its operation's included": [
        "frameworks/test_names.py::test_names_that_are_too_long_are_refused_and_nothing_is_in_flight",
    ],
    "a name or a reason contains quotes, line feeds, zeros, bytes that are not text, or characters that act on a "
    "terminal (controls, direction marks, invisible characters)": [
        "frameworks/test_names.py::test_any_bytes_are_a_name_and_the_timeline_of_every_rank_is_json",
        "mp/test_disagreement.py::test_names_may_hold_anything",
        "cpp/base/text_test.cc::JsonText.IsAStringOfJsonWhateverTheBytesAre",
        "cpp/base/text_test.cc::Printable.EscapesEveryCharacterThatActsOnATerminalOrCannotBeSeen",
    ],
    "a path or a knob's text has a NUL byte": [
        "cpp/base/files_test.cc::FilesTest.APathWithANulByteIsRefusedAndNothingIsRemoved",
        "cpp/base/knobs_test.cc::Knobs.ATextWithANulByteIsRefused",
        "cpp/observe/trace_file_test.cc::TraceFileTest.APathWithANulByteRemovesNothing",
    ],
    "memory runs out in the middle of collectives (`ulimit -v`, a batch system's limit, `overcommit_memory=2`)": [
        "cpp/runtime/out_of_memory_test.cc::OutOfMemory.EndsInAnErrorOnEveryRankWhereverItHappens",
        "cpp/runtime/out_of_memory_test.cc::OutOfMemoryAt.TheReasonNamesTheRankOnEveryRank",
        "mp/test_injected_faults.py::"
        "test_a_rank_without_memory_anywhere_in_an_operation_has_an_error_and_tells_the_others",
    ],
    "the program closes descriptors that it does not own (`os.closerange`), and opens files under the same numbers": [
        "mp/test_lost_ranks.py::test_a_rank_whose_descriptors_the_program_has_taken_goes_on_and_leaves_its_files_alone",
        "cpp/net/failure/peer_monitor_test.cc::LivenessProcesses.ARankWhoseDescriptorsTheProgramHasTakenIsNotLostAndSeesLosses",
        "unit/observe/test_stacks.py::test_descriptors_that_the_program_has_taken_are_left_alone",
    ],
    "a rank crashes, and core dumps are on": ["cpp/net/shm/arena_test.cc::Arena.CoreDumpsLeaveItsMemoryOut"],
    "a program calls `mlockall(MCL_FUTURE)` before `init()`": [
        "cpp/net/shm/arena_test.cc::Arena.LockingAllFutureMemoryDoesNotFillTheRegions"
    ],
    "the same, and a rank that lacks it computes (its process uses the processor)": [
        "cpp/control/stall_test.cc::Stall.ARankThatComputesIsWaitedForUnlessTheLimitIsTheUsers",
        "cpp/control/stall_test.cc::Stall.AReportSaysThatARankComputesAndThatTheLimitDoesNotCount",
        "cpp/runtime/p2p/endings_test.cc::PointToPoint.WhatWaitsForARankThatComputesFailsOnlyWhenItHasStopped",
    ],
    "a tensor has no elements, no dimensions, or is not contiguous": [
        "frameworks/test_extremes.py::test_any_shape_is_kept_by_every_operation_in_any_layout",
        "frameworks/test_extremes.py::test_inputs_may_share_memory",
        "frameworks/numpy/test_operations.py::test_layouts_that_are_not_c_order_are_copied_and_written_back",
        "frameworks/torch/test_operations.py::test_every_dtype_and_shape_is_reduced_exactly",
    ],
    "a tensor has more than 2^31 elements": [
        "frameworks/test_extremes.py::test_more_elements_than_31_bits_can_count_are_reduced_sent_and_found_behind_them",
        "cpp/data/backends/shm/big_test.cc::ShmBig.BroadcastsMoreThanTwoToThe31ElementsInSegments",
        "mpi/test_backend.py::test_calls_are_cut_where_counts_do_not_fit",
    ],
    "a result would go into a read-only tensor": [
        "frameworks/numpy/test_operations.py::test_read_only_arrays_can_be_sent_but_not_overwritten",
        "frameworks/test_in_place.py::test_mistakes_leave_the_tensor_as_it_was",
    ],
    "a tensor to be reduced holds NaN or infinite values, and `HOROCACHE_CHECK_FINITE=1`": [
        "inproc/test_errors.py::test_values_that_are_not_finite_fail_where_that_was_asked_for",
        "inproc/test_errors.py::test_the_member_of_a_group_and_every_rank_with_bad_values_are_named",
        "cpp/data/kernels/finite_test.cc::FindNonFinite.CountsNansAndInfinitiesOfEveryFloatingType",
    ],
    "a value is NaN or infinite": [
        "frameworks/test_extremes.py::"
        "test_what_is_not_finite_on_one_rank_is_not_finite_on_all_and_touches_nothing_else",
        "cpp/data/kernels/fold_test.cc::Fold.MakesMinAndMaxNanWhereAnyInputIs",
    ],
    "the operation is not defined for the element type; the device has no backend": [
        "frameworks/test_disagreements.py::test_wrong_arguments_are_refused_before_anything_is_sent",
        "inproc/test_devices.py::test_a_tensor_without_a_backend_is_refused",
    ],
    "memory for a result (allgather, alltoall, reducescatter) cannot be allocated": [
        "mp/test_jobs.py::test_too_little_memory_for_a_result_on_one_rank_fails_on_all_and_the_job_goes_on",
        "cpp/data/backends/shm/shm_test.cc::ShmErrors.OfSmallAllocationsFailOneRankAndLetTheOthersFinish",
    ],
    "memory for a buffer, for a copy of a tensor or for an allreduce's result cannot be allocated": [
        "frameworks/test_extremes.py::test_a_tensor_that_there_is_no_memory_for_is_horocaches_error",
        "cpp/data/backends/shm/shm_test.cc::ShmPortTest.RefusesAnAreaThatIsTooSmallAndNamesTheKnob",
        "mp/test_jobs.py::test_too_little_memory_for_start_up_is_an_error_on_every_rank",
    ],
    "a child of `fork()` asks for `rank()`, `size()`, `is_initialized()`, or a process set's properties": [
        "unit/api/test_state.py::test_a_forked_child_knows_who_its_parent_is_and_cannot_operate",
    ],
    "a child of `fork()` calls an operation, `init()` or `abort()`": [
        "mp/test_jobs.py::test_forked_children_get_errors_and_hold_nothing_and_the_parent_goes_on",
        "frameworks/torch/optimizer/test_training_programs.py::test_workers_that_load_data_leave_the_job_alone",
        "mp/test_horovod_programs.py::test_worker_processes_find_it_too",
    ],
    "a rank has no gradient for a parameter of a torch `DistributedOptimizer`": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_a_step_changes_what_one_process_would_change_with_the_mean_gradient",
    ],
    "a child of `fork()` writes to a gradient or tensor in shared memory": [
        "frameworks/test_shared_tensors.py::"
        "test_a_child_of_fork_writes_its_own_copy_of_its_parents_tensors_and_frees_nothing",
    ],
    "a call before `init()` or after `shutdown()`": [
        "mp/test_jobs.py::test_knobs_given_to_init_are_checked",
        "unit/api/test_state.py::test_before_init_everything_that_needs_the_runtime_says_so",
    ],
    "the names of tensors are new in every step": [
        "cpp/runtime/submission/operation_table_test.cc::OperationTableTest.NamesThatNeverReturnDoNotFillTheTable",
        "cpp/control/response_cache_test.cc::ResponseCache.GrowsOnlyWhenAnEvictedNameReturnsSoon",
    ],
    "more names are in use than the response cache has entries": [
        "inproc/test_cache.py::test_more_names_than_the_default_are_one_warning_and_then_all_cached",
        "inproc/test_cache.py::test_a_cache_that_is_much_too_small_is_only_slow",
        "frameworks/test_extremes.py::test_a_hundred_thousand_tensors_are_cached_and_hold_no_more_memory_in_every_step",
        "sim/test_properties.py::test_a_crowded_cache_evicts_alike_everywhere",
    ],
    "the timeline's file cannot be written, or its disk is full": [
        "frameworks/test_timeline.py::test_a_file_that_cannot_be_written_is_said_once_and_training_goes_on",
        "frameworks/test_timeline.py::test_a_full_device_is_said_once_and_training_goes_on",
        "frameworks/test_timeline.py::test_a_disk_that_fills_up_is_said_once_and_the_file_is_whole",
    ],
    "ranks of several hosts have different clocks": [
        "mpi/test_backend.py::test_a_host_whose_clock_is_an_hour_ahead_has_its_place_in_the_merged_timeline",
        "unit/observe/test_traces.py::test_the_files_of_all_ranks_are_found_and_their_clocks_aligned",
    ],
    "Ctrl-C in a waiting call, or in `init()` while ranks of this host are missing": [
        "mp/test_jobs.py::test_control_c_ends_a_rank_that_waits_for_the_others_in_init",
        "mp/test_jobs.py::test_control_c_ends_ranks_that_wait_in_a_collective",
        "inproc/test_errors.py::test_an_interrupt_keeps_the_handle_although_the_operation_ends_meanwhile",
    ],
    # ---- when the job starts
    "some ranks do not come": [
        "mp/test_lost_ranks.py::test_a_rank_that_ends_before_init_is_named_by_the_others",
        "mp/test_lost_ranks.py::test_a_root_that_ends_before_init_is_named_by_the_others",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AMissingRankIsNamedOnEveryRankThatCame",
    ],
    "a rank dies during start-up": [
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.ARankThatIsKilledDuringStartUpIsNamedAtOnce",
        "cpp/net/bootstrap/bootstrap_process_test.cc::"
        "BootstrapProcesses.ARankZeroThatIsKilledDuringStartUpIsNamedAndItsSocketRemoved",
    ],
    "MPI connects the ranks, and one of them dies, or cannot start, during start-up": [
        "mpi/test_jobs.py::test_a_rank_that_cannot_start_is_heard_of_by_those_that_wait_for_it_in_mpi",
        "mpi/test_jobs.py::test_a_rank_that_does_not_call_init_is_named_and_nobody_waits_for_ever",
        "mpi/test_jobs.py::test_all_hear_at_once_of_a_rank_that_falls_in_init_and_none_waits_for_it_at_its_end",
    ],
    "the folder for the start-up socket cannot be made (`TMPDIR` does not exist, or is read-only)": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ADirectoryThatCannotBeMadeIsAnErrorOnEveryRank",
    ],
    "a rank may not open enough files, or not start a thread": [
        "mp/test_jobs.py::test_too_few_files_are_an_error_that_says_how_many",
        "mp/test_jobs.py::test_a_thread_that_cannot_be_started_is_an_error_there_and_a_loss_for_the_others",
        "mp/test_by_hand.py::test_a_thread_that_watches_for_other_jobs_and_cannot_be_started_is_an_error",
        "mp/test_jobs.py::test_sixty_four_files_are_enough_for_four_ranks",
        "mp/test_launcher_usage.py::test_too_few_descriptors_are_one_line_with_the_number_needed",
    ],
    "memory for start-up cannot be allocated": [
        "mp/test_jobs.py::test_too_little_memory_for_start_up_is_an_error_on_every_rank",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TooLittleMemoryOnRankZeroIsSaidOnEveryRank",
    ],
    "the container's `/dev/shm` is tiny": [
        "mp/test_jobs.py::test_shared_memory_is_not_that_of_dev_shm_which_may_be_tiny",
    ],
    "a killed job has left its socket": [
        "mp/test_jobs.py::test_what_a_killed_job_leaves_does_not_disturb_the_next",
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.TheSocketOfADeadJobDoesNotDisturbTheNext",
    ],
    "another program has the port": ["mp/test_jobs.py::test_a_job_opens_no_port"],
    "two processes claim one rank": [
        "mp/test_jobs.py::test_two_processes_that_claim_one_rank_are_told_so",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TwoProcessesThatClaimRankZeroAreBothTold",
    ],
    "two jobs have the same `MASTER_ADDR` and `MASTER_PORT`, and no launcher that tells them apart": [
        "mp/test_by_hand.py::test_ranks_of_two_jobs_with_one_address_never_form_one",
        "mp/test_by_hand.py::test_jobs_in_two_containers_that_share_a_folder_do_not_meet",
        "cpp/net/bootstrap/contenders_test.cc::Contenders.AProcessWithTheClaimAndTheProgramOfARankIsARival",
    ],
    "a second process claims a rank of a job that has begun, which may be two jobs": [
        "mp/test_by_hand.py::test_a_second_claimant_ends_a_job_that_may_be_two",
    ],
    "the same through torch.distributed: two jobs use one store (`env://`, `tcp://`)": [
        "mp/test_by_hand.py::test_ranks_of_two_jobs_that_meet_in_one_store_of_torch_learn_it",
    ],
    "a process that a rank has started calls `init()` with the rank's environment": [
        "mp/test_jobs.py::test_a_program_that_a_rank_starts_is_no_rank",
    ],
    "the launcher's numbers are not those of MPI, whose library belongs to another launcher": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.MpisWorldIsComparedWithTheLaunchersNumbers",
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.ANumberThatMpisWorldDoesNotHaveIsRefusedThoughNobodySaysOfHowManyItIs",
        "mpi/test_jobs.py::test_a_process_that_mpi_takes_for_a_job_of_its_own_is_none_if_its_launcher_says_otherwise",
    ],
    "the launcher gives rank 0 and no size, and MPI reports a job of one process": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.ANumberThatMpisWorldDoesNotHaveIsRefusedThoughNobodySaysOfHowManyItIs",
        "mpi/test_jobs.py::test_a_process_that_mpi_takes_for_a_job_of_its_own_is_none_if_its_launcher_says_otherwise",
    ],
    "variables show that a process is one of several, but not its rank or their number": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.OneOfSeveralProcessesIsNotAloneThoughNobodySaysOfHowMany",
    ],
    "MPI cannot be used, and all ranks are on one host": [
        "mpi/test_jobs.py::test_ranks_of_one_host_that_know_their_job_do_without_an_mpi_that_cannot_be_used",
    ],
    "another user has made `horocache-UID` in the folder for temporary files": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.WhatAnotherUserHasMadeInThePlaceOfTheDirectoryIsAvoidedByAllRanks",
    ],
    "another process holds a lock on that folder": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ALockThatAnotherProcessHoldsOnTheDirectoryDoesNotMatter",
    ],
    "several threads of a rank call `init()` at once": [
        "unit/api/test_state.py::test_threads_that_call_init_at_once_have_one_session",
    ],
    "the launcher's variables contradict each other": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.OursThatDoNotFitTogetherAreRefused",
    ],
    "ranks run different versions": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AnotherProtocolIsASkewOnBothRanks",
        "cpp/net/bootstrap/handshake_test.cc::Handshake.ByteOrderIsCompared",
    ],
    "a knob that must be equal differs": [
        "mp/test_disagreement.py::test_knobs_that_must_agree_and_do_not_are_a_table_of_values_on_every_rank",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.EverySettingThatDiffersIsListedOnEveryRank",
        "mpi/test_jobs.py::test_different_settings_are_a_table_on_every_rank",
    ],
    "ranks name different process sets": [
        "frameworks/test_process_sets.py::test_ranks_that_differ_in_their_sets_are_told_at_the_start",
    ],
    "a process set is empty, has ranks that do not exist, or equals another": [
        "inproc/test_process_sets.py::test_sets_that_cannot_be_are_refused",
    ],
    "the memory of a process set cannot be allocated": [
        "frameworks/test_process_sets.py::"
        "test_a_set_that_cannot_be_made_is_named_by_its_members_and_the_others_are_not_left_waiting",
    ],
    "an unknown `HOROCACHE_` variable, a bad value": [
        "mp/test_launcher_usage.py::test_an_unknown_knob_variable_is_reported_before_anything_starts",
        "mp/test_launcher_usage.py::test_a_bad_knob_variable_is_reported_before_anything_starts",
        "cpp/base/knobs_test.cc::Knobs.AnUnknownNameIsAnErrorThatSuggestsTheNearest",
    ],
    # ---- the launcher
    "a rank fails, also before `init()`": [
        "mp/test_launcher_failures.py::test_the_exit_code_is_that_of_the_first_rank_that_failed",
        "mp/test_launcher_failures.py::test_survivors_have_the_grace_period_to_end_by_themselves",
        "mp/test_launcher_failures.py::test_a_rank_that_ignores_term_or_is_stopped_is_killed",
        "mp/test_lost_ranks.py::test_a_crash_before_init_is_named_with_the_signal_the_host_and_the_last_lines",
    ],
    "Ctrl-C, TERM or HUP": [
        "mp/test_launcher_failures.py::test_a_signal_reaches_the_ranks_and_gives_128_plus_its_number",
        "mp/test_launcher_failures.py::test_ranks_that_ignore_the_signal_are_killed_after_the_grace_period",
        "mp/test_launcher_failures.py::test_grandchildren_and_daemons_of_the_ranks_go_with_the_job",
    ],
    "a rank writes output of any length without line feeds": [
        "unit/launch/test_output.py::test_each_byte_of_a_line_without_end_is_looked_at_once_and_few_are_kept",
        "unit/launch/test_output.py::test_dots_that_come_one_by_one_show_every_second_and_cost_one_look_each",
        "mp/test_launcher_output.py::test_a_signal_is_heeded_while_ranks_write_without_line_feeds",
    ],
    "its output is not read (a pager)": [
        "mp/test_launcher_output.py::test_a_signal_is_heeded_when_the_ranks_are_gone_and_nobody_reads_their_output",
    ],
    "`horocacherun` and its guardian are killed together": [
        "mp/test_launcher_failures.py::test_when_launcher_and_guardian_are_killed_together_the_kernel_ends_every_rank",
    ],
    "`TMPDIR` has folders with names such as `horocache-...`": [
        "unit/launch/test_folders.py::test_what_cannot_be_proved_to_be_a_job_s_of_this_host_stays",
        "unit/launch/test_folders.py::test_what_may_be_somebody_else_s_stays",
    ],
    "the folder for temporary files is full, or cannot be written": [
        "mp/test_launcher_usage.py::test_a_temporary_folder_that_cannot_be_made_is_one_line",
    ],
    "`--output-dir` has files, links or FIFOs with the names of outputs": [
        "mp/test_launcher_output.py::test_the_output_directory_keeps_what_each_rank_wrote",
    ],
    "the limit of processes is reached (`ulimit -u`, a container's)": [
        "mp/test_launcher_failures.py::test_where_no_process_can_be_started_one_line_says_so",
    ],
    "a rank fails because another rank failed, and ends first": [
        "mp/test_launcher_failures.py::"
        "test_the_rank_that_failed_is_named_although_others_end_first_with_errors_of_their_own",
        "unit/launch/test_command_line.py::"
        "test_a_rank_is_believed_what_it_said_of_its_failure_whatever_its_error_reads",
    ],
    "`horocacherun` itself is killed": [
        "mp/test_launcher_failures.py::test_when_the_launcher_is_killed_the_guardian_ends_every_rank",
        "mp/test_jobs.py::test_when_the_launcher_is_killed_ranks_in_a_collective_end",
    ],
    "all processes are killed at once, including the guardian": [
        "mp/test_jobs.py::test_nothing_is_left_when_everything_is_killed_at_any_moment",
        "unit/launch/test_folders.py::test_what_nobody_holds_any_more_is_removed",
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.NothingIsLeftWhenAllRanksAreKilledInTheMiddle",
    ],
    "`-np 0`, an unknown flag, no command, a command that does not exist": [
        "mp/test_launcher_usage.py::test_a_number_of_ranks_that_cannot_be_is_one_line",
        "mp/test_launcher_usage.py::test_a_mistake_is_one_line_that_names_it",
        "mp/test_launcher_usage.py::test_an_unknown_option_suggests_the_nearest",
        "mp/test_launcher_usage.py::test_a_command_that_is_not_there_gives_127",
    ],
    "two jobs run on one host": [
        "mp/test_jobs.py::test_two_jobs_at_once_do_not_meet",
        "mp/test_jobs.py::test_two_jobs_that_start_again_and_again_do_not_meet",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TwoJobsInOneDirectoryDoNotMeet",
    ],
}
