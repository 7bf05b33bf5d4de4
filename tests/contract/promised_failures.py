"""The promises of docs/failures.md, row by row, with their tests; see test_promises.py."""

FAILURES = {
    # ---- while the job runs
    "a rank is killed, or ends with `os._exit()`": [
        "mp/test_lost_ranks.py::test_a_killed_rank_is_named_on_every_survivor",
        "mp/test_lost_ranks.py::test_a_rank_that_vanishes_without_its_exit_handlers_is_lost",
        "mp/test_lost_ranks.py::test_a_killed_rank_with_running_fork_workers_is_lost",
        "mp/test_injected_faults.py::test_a_rank_killed_at_any_place_of_an_operation_is_named",
        "mpi/test_jobs.py::test_a_killed_rank_ends_the_job_and_leaves_nothing_behind",
        "mpi/test_jobs.py::test_the_death_of_any_rank_reaches_every_host",
    ],
    "several ranks die at once, or one more while the others see it": [
        "frameworks/test_disagreements.py::test_survivors_get_errors_when_three_ranks_die_in_a_row",
        "mp/test_lost_ranks.py::test_a_rank_that_ends_after_a_loss_is_not_taken_for_the_cause",
    ],
    "an uncaught exception ends a rank, also one in a hook or a compressor; a rank calls `abort(why)`": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "mp/test_lost_ranks.py::test_an_exception_in_user_code_within_a_step_reaches_all_ranks",
        "mp/test_lost_ranks.py::test_the_rank_that_raised_is_named_and_not_ranks_that_failed_later",
        "inproc/test_errors.py::test_an_abort_reaches_every_rank_with_its_reason",
        "unit/api/test_endings.py::test_an_uncaught_exception_is_reported_before_threads_and_exit_handlers_end",
    ],
    "a call of `sys.exit()`, `exit()` or `quit()` with a code other than 0 ends a rank": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "unit/api/test_endings.py::test_an_uncaught_exception_is_reported_before_threads_and_exit_handlers_end",
    ],
    "a rank's process ends with such a code in another way (`raise SystemExit(3)`)": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
    ],
    "a rank calls `shutdown()`, or its program ends (`sys.exit(0)`), while others wait for it": [
        "mp/test_lost_ranks.py::test_a_rank_that_exits_or_raises_is_named_on_every_survivor",
        "inproc/test_errors.py::test_a_rank_that_leaves_fails_pending_operations_of_the_others",
        "frameworks/numpy/test_jobs.py::test_pending_operations_fail_on_all_ranks_when_one_shuts_down",
        "frameworks/numpy/test_jobs.py::test_processes_end_while_operations_are_pending",
    ],
    "a rank is stopped (SIGSTOP) or hangs": [
        "mp/test_lost_ranks.py::test_a_stopped_rank_is_reported_and_then_fails_the_others",
        "mp/test_injected_faults.py::test_a_rank_stopped_at_any_place_of_an_operation_fails_the_others",
        "cpp/control/stall_test.cc::Silence.OfAStoppedRankIsReportedAndEndsTheSet",
        "mpi/test_jobs.py::test_a_rank_that_stays_stopped_is_named_on_every_rank_of_every_host",
    ],
    "a stopped rank continues in time": [
        "mp/test_jobs.py::test_a_rank_that_is_stopped_for_a_moment_continues",
        "cpp/control/stall_test.cc::Silence.OfARankThatContinuesInTimeHasNoEffect",
        "mpi/test_jobs.py::test_the_lowest_rank_of_a_host_may_stop_for_longer_than_the_link_timeout",
        "cpp/net/failure/host_monitor_test.cc::HostMonitor.AStoppedRankIsNoLossWhileAnotherRankOfItsHostRuns",
    ],
    "a host, or the network to it, is gone": [
        "mpi/test_hosts.py::test_a_cut_connection_is_an_error_on_every_rank_that_names_both_hosts",
        "cpp/net/failure/host_monitor_test.cc::HostMonitor.ASilentHostIsLostAndTheErrorNamesBothEnds",
    ],
    "a native call holds the GIL of a rank": [
        "frameworks/test_waiting.py::test_collectives_complete_while_a_rank_holds_the_gil_in_native_code",
        "mp/test_lost_ranks.py::test_a_rank_that_holds_the_gil_is_reported_and_then_fails_the_others",
    ],
    "a rank is slow again and again": [
        "frameworks/test_waiting.py::test_waiting_for_a_late_rank_uses_no_processor_time_and_is_counted",
        "mp/test_disagreement.py::test_a_late_rank_causes_a_report_and_no_error",
        "unit/observe/test_traces.py::test_the_breakdown_divides_the_time_of_each_rank_into_parts",
    ],
    "there are more ranks than cores": [
        "mp/test_jobs.py::test_eight_ranks_share_two_cores",
        "frameworks/numpy/test_jobs.py::test_twenty_four_processes_connect_and_sum",
    ],
    "a tensor is submitted on some ranks only": [
        "mp/test_disagreement.py::test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails",
        "cpp/control/stall_test.cc::StallOf.IsReportedOnEveryRankWithTheRanksThatHaveOrLackTheOperation",
        "cpp/control/stall_test.cc::StallOf.FailsAfterTheLimitOnTheRanksThatHaveTheOperation",
    ],
    "the same, and it is certain that it never completes (the missing rank has left, or itself waits only for tensors "
    "that the others lack)": [
        "mp/test_disagreement.py::test_a_certain_deadlock_fails_at_once_on_every_rank",
        "mp/test_disagreement.py::test_two_ranks_that_wait_for_each_other_fail_while_others_compute",
        "mp/test_disagreement.py::test_a_thread_that_has_not_submitted_yet_may_end_the_wait_of_another_rank",
        "mp/test_disagreement.py::test_a_wait_with_a_time_limit_is_no_deadlock",
        "frameworks/tensorflow/test_errors.py::test_ranks_that_wait_for_each_other_in_functions_raise_at_once",
        "cpp/base/stillness_test.cc::Stillness.IsWhenAllThreadsWaitForAnotherThread",
    ],
    "shape, type, operation, root, scale, priority, compression or group members differ": [
        "inproc/test_mismatches.py::test_a_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on",
        "mp/test_disagreement.py::test_every_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on",
        "cpp/control/mismatch_test.cc::Mismatch.NamesBothRanksAndBothValues",
        "cpp/control/mismatch_test.cc::Mismatch.ADisagreementAboutACachedOperationIsFoundWithinTwoRounds",
        "inproc/test_priorities.py::test_different_priorities_are_a_mismatch_and_the_job_goes_on",
        "frameworks/test_compression.py::test_ranks_that_disagree_get_an_error_with_both_values_and_the_job_goes_on",
    ],
    "a rank's message of a compressed tensor is damaged": [
        "frameworks/test_compression.py::test_damaged_bytes_are_an_error_that_names_the_rank_and_the_job_goes_on",
        "unit/api/test_codecs.py::test_every_damaged_byte_is_noticed",
    ],
    "a rank expects another number of rows than it gets (`recvcounts`), or `recvcounts` of `reducescatterv` differ": [
        "conformance/test_conformance.py::test_every_operation_agrees_with_numpy",
        "cpp/data/row_layout_test.cc::PlacedRowsTest.AWrongExpectationOfOneRankFailsAllRanksAndTheLaneGoesOn",
    ],
    "lists of counts or displacements do not fit one rank's tensor or the number of ranks": [
        "conformance/test_conformance.py::test_every_operation_agrees_with_numpy",
        "cpp/data/row_layout_test.cc::PlacedRowsTest.InvalidListsFailOnAllRanks",
        "mp/test_disagreement.py::test_invalid_splits_raise_on_the_rank_that_gives_them",
    ],
    "parts of a result overlap": [
        "conformance/test_conformance.py::test_every_operation_agrees_with_numpy",
        "cpp/data/row_layout_test.cc::PlanReceive.RefusesOverlappingPartsAndInvalidLists",
    ],
    "one tensor is in different groups on two ranks": [
        "inproc/test_groups.py::test_a_tensor_that_is_grouped_on_some_ranks_only_fails_on_all_ranks",
        "cpp/control/group_test.cc::Group.ATensorInDifferentGroupsOnTwoRanksFailsAtOnce",
    ],
    "one member of a group is wrong": [
        "inproc/test_groups.py::test_a_mismatch_in_any_member_fails_the_group",
        "inproc/test_groups.py::test_a_group_with_a_name_in_flight_raises_and_frees_the_other_names",
        "inproc/test_groups.py::test_a_group_with_an_invalid_member_raises_and_submits_no_member",
        "inproc/test_groups.py::test_a_member_that_no_backend_can_reduce_fails_the_group_on_all_ranks",
    ],
    "calls without a name come in another order on some rank": [
        "frameworks/test_names.py::test_mismatched_automatic_names_raise_and_the_job_goes_on",
        "frameworks/test_names.py::test_unnamed_calls_are_matched_by_operation_set_and_call_number",
        "sim/test_properties.py::test_requests_that_all_members_submit_complete",
    ],
    "two threads of one name call operations without a name": [
        "frameworks/test_names.py::test_each_thread_counts_its_unnamed_calls_separately",
        "frameworks/tensorflow/test_names.py::test_each_thread_counts_its_unnamed_eager_calls_separately",
    ],
    "JAX: an operation runs inside `shard_map` or `pmap`, over several devices of a rank": [
        "frameworks/jax/test_transformations.py::test_operations_run_once_per_rank_not_once_per_device",
    ],
    "JAX: arrays have other sizes than a compiled or differentiated `allgather` or `alltoall` was traced with": [
        "frameworks/jax/test_transformations.py::test_compiled_functions_require_the_sizes_known_at_tracing",
    ],
    "ranks wait for each other in a circle over several process sets": [
        "inproc/test_process_sets.py::test_a_circle_of_waits_over_two_sets_is_reported_and_ended_by_the_stall_limit",
        "inproc/test_process_sets.py::test_ranks_submit_to_crossed_sets_in_opposite_orders_without_waiting",
        "frameworks/test_process_sets.py::test_threads_use_overlapping_sets_in_different_orders",
    ],
    "ranks add different process sets, or add where others remove": [
        "frameworks/test_dynamic_process_sets.py::test_adding_different_sets_raises_on_all_ranks_and_the_job_goes_on",
        "cpp/runtime/runtime_sets_test.cc::RuntimeSets.DifferentProposalsAddNoSet",
    ],
    "a member cannot join a process set that is added": [
        "frameworks/test_dynamic_process_sets.py::test_a_set_is_added_on_no_rank_if_one_member_fails",
        "mp/test_jobs.py::test_too_few_descriptors_for_a_set_fail_its_addition_on_every_rank",
    ],
    "an operation uses a process set that does not contain the rank, or is not registered": [
        "inproc/test_process_sets.py::test_a_set_without_the_rank_and_a_set_that_is_not_registered_raise",
        "frameworks/test_dynamic_process_sets.py::test_pending_operations_fail_when_their_set_is_removed",
    ],
    "the root of an operation has joined": [
        "inproc/test_join.py::test_operations_whose_root_has_joined_raise",
    ],
    "ranks call `join` with different `divide_by`": [
        "inproc/test_join.py::test_joins_with_different_divisors_raise_and_the_job_goes_on",
    ],
    "a message's two sides differ in element type or number of elements": [
        "inproc/test_messages.py::test_a_message_mismatch_is_named_on_both_ranks_and_the_next_message_arrives",
        "cpp/runtime/p2p/engine_test.cc::PointToPoint.ASmallMismatchFailsOnTheReceiverOnly",
    ],
    "a message has no receiver, or no sender": [
        "cpp/runtime/p2p/endings_test.cc::PointToPoint.AMessageThatWaitsTooLongIsReportedAndThenFails",
        "inproc/test_messages.py::test_messages_sent_before_their_sender_left_arrive_and_later_receives_fail",
    ],
    "a name is submitted again while it is in flight": [
        "inproc/test_errors.py::test_a_name_in_flight_raises_and_the_first_operation_completes",
        "mp/test_disagreement.py::test_a_name_in_flight_raises_and_the_first_operation_completes",
    ],
    "torch: gradients of two optimizers are in flight together, and the optimizers share a parameter or a name": [
        "frameworks/torch/optimizer/test_several_optimizers.py::test_optimizers_with_an_equal_name_or_parameter_raise",
    ],
    "torch: optimizers, groups or numbers of parameters differ at `broadcast_optimizer_state`, or each rank has a "
    "share of the state": [
        "frameworks/torch/optimizer/test_broadcast.py::test_groups_that_differ_from_the_roots_raise_on_all_ranks",
    ],
    "torch: the program adds parameters to an optimizer's groups between `synchronize()` and `step()`": [
        "frameworks/torch/optimizer/test_param_groups.py::test_parameters_added_after_synchronize_raise_on_all_ranks",
    ],
    "a name is used for another shape, type or operation once its operation is over": [
        "inproc/test_cache.py::test_a_name_with_another_operation_is_negotiated_once_and_then_cached",
        "cpp/control/mismatch_test.cc::Mismatch.AChangedRequestIsRenegotiatedOnce",
    ],
    "a name has more than 4,096 bytes, its operation's included": [
        "frameworks/test_names.py::test_too_long_names_raise_and_leave_nothing_in_flight",
    ],
    "a name or a reason contains quotes, line feeds, zeros, bytes that are not text, or characters that act on a "
    "terminal (controls, direction marks, invisible characters)": [
        "frameworks/test_names.py::test_any_bytes_are_a_valid_name_and_timelines_stay_valid_json",
        "mp/test_disagreement.py::test_names_may_have_any_characters",
        "cpp/base/text_test.cc::JsonText.IsAJsonStringForAnyBytes",
        "cpp/base/text_test.cc::Printable.EscapesEveryControlAndInvisibleCharacter",
    ],
    "a path or a knob's text has a NUL byte": [
        "cpp/base/files_test.cc::FilesTest.APathWithANulByteIsRefusedAndNothingIsRemoved",
        "cpp/base/knobs_test.cc::Knobs.ATextWithANulByteIsRefused",
        "cpp/observe/trace_file_test.cc::TraceFileTest.APathWithANulByteRemovesNothing",
    ],
    "memory runs out in the middle of collectives (`ulimit -v`, a batch system's limit, `overcommit_memory=2`)": [
        "cpp/runtime/out_of_memory_test.cc::OutOfMemory.AtAnyAllocationIsAnErrorOnEveryRank",
        "cpp/runtime/out_of_memory_test.cc::OutOfMemoryAt.TheReasonNamesTheRankOnEveryRank",
        "mp/test_injected_faults.py::test_a_rank_without_memory_at_any_place_of_an_operation_ends_the_job",
    ],
    "the program closes descriptors that it does not own (`os.closerange`), and opens files under the same numbers": [
        "mp/test_lost_ranks.py::test_a_rank_goes_on_after_its_program_closed_all_descriptors",
        "cpp/net/failure/peer_monitor_test.cc::PeerMonitorProcesses.ARankWhoseProgramReopenedItsDescriptorsIsNotLostAndSeesLosses",
        "unit/observe/test_stacks.py::test_descriptors_that_the_program_has_reopened_are_not_closed",
    ],
    "a rank crashes, and core dumps are on": ["cpp/net/shm/arena_test.cc::Arena.CoreDumpsLeaveItsMemoryOut"],
    "a program calls `mlockall(MCL_FUTURE)` before `init()`": [
        "cpp/net/shm/arena_test.cc::Arena.LockingAllFutureMemoryDoesNotFillTheRegions"
    ],
    "the same, and a rank that lacks it computes (its process uses the processor)": [
        "cpp/control/stall_test.cc::Stall.TheDefaultLimitDoesNotCountWhileTheLateRankComputes",
        "cpp/control/stall_test.cc::Stall.AReportNamesAComputingRankAndThatTheLimitDoesNotCount",
        "cpp/runtime/p2p/endings_test.cc::PointToPoint.TheLimitDoesNotCountWhileThePeerComputes",
    ],
    "a tensor has no elements, no dimensions, or is not contiguous": [
        "frameworks/test_extremes.py::test_every_operation_keeps_shapes_in_any_memory_layout",
        "frameworks/test_extremes.py::test_inputs_may_share_memory",
        "frameworks/numpy/test_operations.py::test_arrays_in_any_memory_layout_are_reduced_and_written_back",
        "frameworks/torch/test_operations.py::test_every_dtype_and_shape_is_reduced_exactly",
    ],
    "a tensor has more than 2^31 elements": [
        "frameworks/test_extremes.py::test_operations_on_more_than_2_to_the_31_elements",
        "cpp/data/backends/shm/big_test.cc::ShmBig.BroadcastsMoreThanTwoToThe31ElementsInSegments",
        "mpi/test_backend.py::test_operations_beyond_the_count_limit_are_split_into_several_mpi_calls",
    ],
    "a result would go into a read-only tensor": [
        "frameworks/numpy/test_operations.py::test_read_only_arrays_can_be_sent_but_not_overwritten",
        "frameworks/test_in_place.py::test_failed_in_place_operations_leave_the_tensor_unchanged",
    ],
    "a tensor to be reduced holds NaN or infinite values, and `HOROCACHE_CHECK_FINITE=1`": [
        "inproc/test_errors.py::test_check_finite_fails_only_reductions_of_values_that_are_not_finite",
        "inproc/test_errors.py::test_check_finite_names_the_group_member_and_every_rank_with_bad_values",
        "cpp/data/kernels/finite_test.cc::FindNonFinite.CountsNansAndInfinitiesOfEveryFloatingType",
        "frameworks/test_compression.py::test_check_finite_names_the_ranks_with_bad_values",
    ],
    "an operation of a dependency engine fails on a rank, and a collective depends on it": [
        "inproc/test_errors.py::test_a_failed_input_is_an_error_of_all_ranks_and_of_that_operation_only",
        "frameworks/dag/test_collectives.py::test_d6_all_ranks_get_an_error_if_the_input_of_one_has_failed",
    ],
    "ranks use the keys of a store with a static order (`depcha`, `concom`, `funnel`) in different orders": [
        "frameworks/kvstore/test_store.py::test_k5_a_static_order_is_checked",
    ],
    "a value is NaN or infinite": [
        "frameworks/test_extremes.py::test_non_finite_values_reach_all_ranks_and_no_other_element",
        "cpp/data/kernels/fold_test.cc::Fold.MinAndMaxAreNanIfAnyInputIs",
    ],
    "the operation is not defined for the element type; the device has no backend": [
        "frameworks/test_disagreements.py::test_wrong_arguments_are_refused_before_anything_is_sent",
        "inproc/test_devices.py::test_a_tensor_on_a_device_without_a_backend_raises",
    ],
    "memory for a result (allgather, alltoall, reducescatter) cannot be allocated": [
        "mp/test_jobs.py::test_too_little_memory_for_a_result_fails_all_ranks_and_the_job_goes_on",
        "cpp/data/backends/shm/shm_test.cc::ShmErrors.OfSmallAllocationsFailOneRankAndLetTheOthersFinish",
    ],
    "memory for a buffer, for a copy of a tensor or for an allreduce's result cannot be allocated": [
        "frameworks/test_extremes.py::test_failed_allocations_raise_out_of_memory_error",
        "cpp/data/backends/shm/shm_test.cc::ShmPortTest.RefusesAnAreaThatIsTooSmallAndNamesTheKnob",
        "mp/test_jobs.py::test_too_little_memory_for_start_up_is_an_error_on_every_rank",
    ],
    "a child of `fork()` asks for `rank()`, `size()`, `is_initialized()`, or a process set's properties": [
        "unit/api/test_state.py::test_a_forked_child_reads_the_rank_of_its_parent_and_cannot_operate",
    ],
    "a rank dies before it answers tokens of a mixture-of-experts layer": [
        "mp/test_windows.py::test_m11_without_early_exit_a_killed_rank_is_an_error_that_names_it",
        "mp/test_windows.py::test_m11_with_early_exit_exactly_the_tokens_of_a_killed_rank_are_dropped",
        "mpi/test_jobs.py::test_the_death_of_a_rank_in_an_exchange_reaches_every_host",
    ],
    "a rank leaves the job, or closes a layer, before it answers tokens": [
        "mp/test_windows.py::test_a_rank_that_leaves_the_job_is_named",
    ],
    "a rank is stopped, or hangs, in a mixture-of-experts layer": [
        "mp/test_windows.py::test_m10_a_stopped_rank_finds_its_call_left_and_joins_the_next_ones",
        "mp/test_windows.py::test_a_rank_that_does_not_call_the_layer_is_reported_and_then_an_error",
    ],
    "an expert or a gate raises on one rank": [
        "mp/test_windows.py::test_an_error_of_one_rank_reaches_the_others_and_the_next_call_works",
        "mpi/test_windows.py::test_what_cannot_be_exchanged_is_an_error_on_every_rank",
    ],
    "ranks call two layers in different orders": [
        "mp/test_windows.py::test_ranks_that_call_layers_in_different_orders_are_named_with_both_layers",
        "frameworks/moe/test_windows.py::"
        "test_layers_with_windows_of_different_sizes_in_different_orders_are_named_on_both_ranks",
    ],
    "ranks make a layer with different arguments": [
        "frameworks/moe/test_windows.py::test_m14_windows_that_differ_are_an_error_on_all_ranks_that_names_both",
        "frameworks/torch/moe/test_layer_input.py::test_m14_layers_that_differ_between_ranks_are_an_error_that_names_both",
    ],
    "memory for a layer's window cannot be had": [
        "frameworks/moe/test_windows.py::test_m21_memory_that_cannot_be_had_is_an_error_with_size_and_knob",
        "frameworks/moe/test_windows.py::test_m21_a_shortage_on_one_rank_is_an_error_on_all",
    ],
    "a rank has more tokens for a rank on another host than their window has room for": [
        "mpi/test_windows.py::test_what_cannot_be_exchanged_is_an_error_on_every_rank",
        "cpp/moe/remote_window_test.cc::RemoteWindow.ABatchThatIsLargerThanItsCellIsAnErrorOnEveryRank",
    ],
    "a child of `fork()` calls an operation, `init()` or `abort()`": [
        "mp/test_jobs.py::test_forked_children_get_errors_and_the_parent_goes_on",
        "frameworks/torch/optimizer/test_training_programs.py::test_data_loader_workers_do_not_disturb_the_job",
        "mp/test_horovod_programs.py::test_worker_processes_can_import_horovod",
    ],
    "a rank has no gradient for a parameter of a torch `DistributedOptimizer`": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_steps_with_unused_parameters_equal_those_of_one_process",
    ],
    "a child of `fork()` writes to a gradient or tensor in shared memory": [
        "frameworks/test_shared_tensors.py::test_a_forked_child_writes_copies_of_shared_tensors_and_frees_none",
    ],
    "a call before `init()` or after `shutdown()`": [
        "mp/test_jobs.py::test_knobs_given_to_init_are_checked",
        "unit/api/test_state.py::test_calls_before_init_raise",
    ],
    "the names of tensors are new in every step": [
        "cpp/runtime/submission/operation_table_test.cc::OperationTableTest.NamesThatNeverReturnDoNotFillTheTable",
        "cpp/control/response_cache_test.cc::ResponseCache.GrowsOnlyWhenAnEvictedNameReturnsSoon",
    ],
    "more names are in use than the response cache has entries": [
        "inproc/test_cache.py::test_more_names_than_the_default_capacity_give_one_warning_and_are_cached",
        "inproc/test_cache.py::test_a_cache_that_is_much_too_small_gives_correct_results",
        "frameworks/test_extremes.py::test_a_hundred_thousand_cached_tensors_need_no_more_memory_per_step",
        "sim/test_properties.py::test_a_full_cache_evicts_the_same_entries_on_every_rank",
    ],
    "a call of a library (NCCL, CUDA or MPI) does not return to the thread that drives the operations": [
        "fake_gpu/test_bad_input.py::test_a_call_that_does_not_return_ends_its_process_and_the_job",
    ],
    "the timeline's file cannot be written, or its disk is full": [
        "frameworks/test_timeline.py::test_an_unwritable_file_is_logged_once_and_the_job_goes_on",
        "frameworks/test_timeline.py::test_a_full_device_is_logged_once_and_the_job_goes_on",
        "frameworks/test_timeline.py::test_a_full_disk_is_logged_once_and_the_file_is_complete",
    ],
    "ranks of several hosts have different clocks": [
        "mpi/test_backend.py::test_the_merged_timeline_corrects_a_clock_that_is_an_hour_ahead",
        "unit/observe/test_traces.py::test_the_files_of_all_ranks_are_found_and_their_clocks_aligned",
    ],
    "Ctrl-C in a waiting call, or in `init()` while ranks of this host are missing": [
        "mp/test_jobs.py::test_control_c_ends_a_rank_that_waits_for_other_ranks_in_init",
        "mp/test_jobs.py::test_control_c_ends_ranks_that_wait_in_a_collective",
        "inproc/test_errors.py::test_an_interrupted_wait_keeps_the_handle_of_a_completed_operation",
    ],
    # ---- when the job starts
    "some ranks do not come": [
        "mp/test_lost_ranks.py::test_a_rank_that_ends_before_init_is_named_by_the_others",
        "mp/test_lost_ranks.py::test_a_rank_0_that_ends_before_init_is_named_by_the_others",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AMissingRankIsNamedOnEveryOtherRank",
    ],
    "a rank dies during start-up": [
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.ARankThatIsKilledDuringStartUpIsNamedAtOnce",
        "cpp/net/bootstrap/bootstrap_process_test.cc::"
        "BootstrapProcesses.ARankZeroThatIsKilledDuringStartUpIsNamedAndItsSocketRemoved",
    ],
    "MPI connects the ranks, and one of them dies, or cannot start, during start-up": [
        "mpi/test_jobs.py::test_ranks_that_wait_in_mpi_learn_that_another_rank_cannot_start",
        "mpi/test_jobs.py::test_a_rank_that_does_not_call_init_is_named_after_the_time_limit",
        "mpi/test_jobs.py::test_a_rank_that_fails_in_init_is_named_at_once_by_all_others",
    ],
    "the folder for the start-up socket cannot be made (`TMPDIR` does not exist, or is read-only)": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ADirectoryThatCannotBeMadeIsAnErrorOnEveryRank",
    ],
    "a rank may not open enough files, or not start a thread": [
        "mp/test_jobs.py::test_too_few_descriptors_are_an_error_that_names_the_limit",
        "mp/test_jobs.py::test_a_thread_that_cannot_be_started_is_a_loss_for_the_other_ranks",
        "mp/test_by_hand.py::test_a_contender_thread_that_cannot_be_started_is_an_error",
        "mp/test_jobs.py::test_64_descriptors_are_enough_for_four_ranks",
        "mp/test_launcher_usage.py::test_too_few_descriptors_are_one_line_with_the_number_needed",
    ],
    "memory for start-up cannot be allocated": [
        "mp/test_jobs.py::test_too_little_memory_for_start_up_is_an_error_on_every_rank",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TooLittleMemoryOnRankZeroIsAnErrorOnEveryRank",
    ],
    "the container's `/dev/shm` is tiny": [
        "mp/test_jobs.py::test_a_tiny_dev_shm_does_not_matter",
    ],
    "a killed job has left its socket": [
        "mp/test_jobs.py::test_the_socket_of_a_killed_job_does_not_disturb_the_next_job",
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.TheSocketOfADeadJobDoesNotDisturbTheNext",
    ],
    "another program has the port": ["mp/test_jobs.py::test_a_job_opens_no_port"],
    "two processes claim one rank": [
        "mp/test_jobs.py::test_two_processes_with_one_rank_fail_the_start",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TwoProcessesThatClaimRankZeroBothGetAnError",
    ],
    "two jobs have the same `MASTER_ADDR` and `MASTER_PORT`, and no launcher that tells them apart": [
        "mp/test_by_hand.py::test_ranks_of_two_jobs_with_one_address_never_form_one_job",
        "mp/test_by_hand.py::test_jobs_in_two_containers_that_share_a_folder_are_separate",
        "cpp/net/bootstrap/contenders_test.cc::Contenders.AProcessWithTheClaimAndTheProgramOfARankIsAContender",
    ],
    "a second process claims a rank of a job that has begun, which may be two jobs": [
        "mp/test_by_hand.py::test_a_second_process_with_the_same_rank_aborts_the_running_job",
    ],
    "the same through torch.distributed: two jobs use one store (`env://`, `tcp://`)": [
        "mp/test_by_hand.py::test_ranks_of_two_jobs_in_one_torch_store_get_an_error",
    ],
    "a process that a rank has started calls `init()` with the rank's environment": [
        "mp/test_jobs.py::test_a_program_that_a_rank_starts_cannot_be_a_rank",
    ],
    "the launcher's numbers are not those of MPI, whose library belongs to another launcher": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.TheWorldOfMpiIsComparedWithTheNumbersOfTheLauncher",
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.ARankBeyondTheWorldOfMpiIsRefusedWithoutASize",
        "mpi/test_jobs.py::test_an_mpi_world_of_one_process_contradicts_a_launcher_with_more_ranks",
    ],
    "the launcher gives rank 0 and no size, and MPI reports a job of one process": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.ARankBeyondTheWorldOfMpiIsRefusedWithoutASize",
        "mpi/test_jobs.py::test_an_mpi_world_of_one_process_contradicts_a_launcher_with_more_ranks",
    ],
    "variables show that a process is one of several, but not its rank or their number": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.OneOfSeveralProcessesIsNoJobOfOneRank",
    ],
    "MPI cannot be used, and all ranks are on one host": [
        "mpi/test_jobs.py::test_ranks_of_one_host_start_without_an_mpi_that_cannot_be_used",
    ],
    "another user has made `horocache-UID` in the folder for temporary files": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AllRanksAvoidADirectoryThatAnotherUserCreated",
    ],
    "another process holds a lock on that folder": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ALockThatAnotherProcessHoldsOnTheDirectoryDoesNotMatter",
    ],
    "several threads of a rank call `init()` at once": [
        "unit/api/test_state.py::test_threads_that_call_init_at_once_have_one_session",
    ],
    "the launcher's variables contradict each other": [
        "cpp/net/bootstrap/launcher_environment_test.cc::Identity.ContradictoryVariablesOfHorocacheAreRefused",
    ],
    "ranks run different versions": [
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AnotherProtocolIsAVersionSkewOnBothRanks",
        "cpp/net/bootstrap/handshake_test.cc::Handshake.ByteOrderIsCompared",
    ],
    "a knob that must be equal differs": [
        "mp/test_disagreement.py::test_different_knobs_are_an_error_with_all_values_on_every_rank",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.EverySettingThatDiffersIsListedOnEveryRank",
        "mpi/test_jobs.py::test_different_settings_are_a_table_on_every_rank",
    ],
    "ranks name different process sets": [
        "frameworks/test_process_sets.py::test_init_raises_if_the_sets_differ_between_ranks",
    ],
    "a process set is empty, has ranks that do not exist, or equals another": [
        "inproc/test_process_sets.py::test_invalid_process_sets_raise",
    ],
    "the memory of a process set cannot be allocated": [
        "frameworks/test_process_sets.py::test_a_set_that_fails_to_start_raises_on_its_members_and_on_others",
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
        "mp/test_launcher_failures.py::test_a_signal_reaches_the_ranks_and_the_exit_code_is_128_plus_its_number",
        "mp/test_launcher_failures.py::test_ranks_that_ignore_the_signal_are_killed_after_the_grace_period",
        "mp/test_launcher_failures.py::test_grandchildren_and_daemons_of_the_ranks_end_with_the_job",
    ],
    "a rank writes output of any length without line feeds": [
        "unit/launch/test_output.py::test_a_line_without_end_is_searched_once_and_needs_little_memory",
        "unit/launch/test_output.py::test_single_dots_are_shown_every_second_and_searched_once",
        "mp/test_launcher_output.py::test_a_signal_ends_the_job_while_ranks_write_without_line_feeds",
    ],
    "its output is not read (a pager)": [
        "mp/test_launcher_output.py::test_a_signal_ends_the_launcher_when_the_output_of_ended_ranks_is_not_read",
    ],
    "`horocacherun` and its guardian are killed together": [
        "mp/test_launcher_failures.py::test_when_launcher_and_guardian_are_killed_together_the_kernel_ends_every_rank",
    ],
    "`TMPDIR` has folders with names such as `horocache-...`": [
        "unit/launch/test_folders.py::test_folders_that_may_not_be_of_a_job_on_this_host_stay",
        "unit/launch/test_folders.py::test_folders_that_may_belong_to_other_programs_stay",
    ],
    "the folder for temporary files is full, or cannot be written": [
        "mp/test_launcher_usage.py::test_a_temporary_folder_that_cannot_be_made_is_one_line",
    ],
    "`--output-dir` has files, links or FIFOs with the names of outputs": [
        "mp/test_launcher_output.py::test_the_output_directory_has_the_output_of_each_rank",
    ],
    "the limit of processes is reached (`ulimit -u`, a container's)": [
        "mp/test_launcher_failures.py::test_the_limit_of_processes_is_an_error_of_one_line",
    ],
    "a rank fails because another rank failed, and ends first": [
        "mp/test_launcher_failures.py::test_the_rank_that_failed_is_named_although_other_ranks_end_first",
        "unit/launch/test_command_line.py::test_the_cause_that_a_rank_reports_outweighs_the_text_of_its_error",
    ],
    "`horocacherun` itself is killed": [
        "mp/test_launcher_failures.py::test_when_the_launcher_is_killed_the_guardian_ends_every_rank",
        "mp/test_jobs.py::test_when_the_launcher_is_killed_ranks_in_a_collective_end",
    ],
    "all processes are killed at once, including the guardian": [
        "mp/test_jobs.py::test_nothing_is_left_when_all_processes_are_killed_at_any_moment",
        "unit/launch/test_folders.py::test_folders_of_ended_processes_are_removed",
        "cpp/net/bootstrap/bootstrap_process_test.cc::BootstrapProcesses.NothingIsLeftWhenAllRanksAreKilledInTheMiddle",
    ],
    "`-np 0`, an unknown flag, no command, a command that does not exist": [
        "mp/test_launcher_usage.py::test_an_invalid_number_of_ranks_is_one_line",
        "mp/test_launcher_usage.py::test_a_mistake_is_one_line_that_names_the_mistake",
        "mp/test_launcher_usage.py::test_an_unknown_option_suggests_the_nearest",
        "mp/test_launcher_usage.py::test_a_missing_command_gives_127",
    ],
    "two jobs run on one host": [
        "mp/test_jobs.py::test_two_jobs_at_once_are_separate",
        "mp/test_jobs.py::test_two_jobs_that_restart_many_times_are_separate",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.TwoJobsInOneDirectoryAreSeparate",
    ],
}
