"""The improvements that docs/migration.md promises, row by row, and the tests that show them; see test_promises.py."""

BETTER_THAN_HOROVOD = {
    "A rank that dies leaves the others waiting, or ends them all without a reason": [
        "mp/test_lost_ranks.py::test_a_killed_rank_is_named_on_every_survivor",
    ],
    '"One rank had type float32, but another rank had type int32"': [
        "inproc/test_mismatches.py::test_a_mismatch_names_both_ranks_and_both_values_on_all_ranks_and_the_job_goes_on",
    ],
    "A tensor that one rank does not submit is reported after minutes, on rank 0, and the ranks wait for it without "
    "end": [
        "cpp/control/stall_test.cc::StallOf.IsReportedOnEveryRankWithWhoHasAndWhoLacksIt",
        "cpp/control/stall_test.cc::StallOf.FailsAfterTheLimitOnTheRanksThatHaveIt",
        "mp/test_disagreement.py::test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails",
    ],
    "Ranks whose calls without a name come in another order hang": [
        "frameworks/test_names.py::test_ranks_whose_automatic_names_do_not_match_get_an_error_and_go_on",
        "frameworks/test_names.py::test_unnamed_calls_meet_by_operation_and_set_whatever_lies_between_them",
    ],
    "A name that is in flight is found in the middle of a group, whose other members stay in flight": [
        "inproc/test_groups.py::test_a_member_that_is_in_flight_refuses_the_group_and_frees_the_others",
        "cpp/runtime/submission/operation_table_test.cc::OperationTableTest.ARefusedGroupLeavesNoMemberBehind",
    ],
    "A group ends with the status of its last member": [
        "inproc/test_groups.py::test_the_error_of_any_member_is_that_of_the_group",
    ],
    "Process sets that differ between ranks end the job": [
        "frameworks/test_dynamic_process_sets.py::test_ranks_that_name_different_sets_are_told_and_the_job_goes_on",
        "frameworks/test_process_sets.py::test_ranks_that_differ_in_their_sets_are_told_at_the_start",
    ],
    "A name that was an allreduce and becomes a reducescatter ends the job": [
        "inproc/test_cache.py::test_a_name_may_mean_something_else_later_and_is_negotiated_once_for_it",
    ],
    "`join()` works for allreduce only": [
        "inproc/test_join.py::test_what_moves_rows_takes_none_from_a_joined_rank_and_drops_what_it_would_get",
        "inproc/test_join.py::test_every_reduction_leaves_out_who_has_joined",
        "inproc/test_join.py::test_a_rank_may_join_one_set_and_go_on_in_others",
    ],
    "`init()` after `shutdown()` fails over MPI": [
        "mpi/test_jobs.py::test_a_job_ends_well_and_starts_again_as_often_as_one_likes",
        "mp/test_jobs.py::test_init_and_shutdown_60_times_leave_files_threads_and_memory_as_they_were",
        "frameworks/numpy/test_jobs.py::test_the_runtime_can_be_started_again_after_it_ended",
    ],
    "The ranks exchange messages each millisecond, also when idle": [
        "mp/test_jobs.py::test_an_idle_job_exchanges_nothing",
        "cpp/control/strategies/bitvector_agreement_test.cc::Bits.WhoLingersStopsWhenAnybodyWaits",
        "cpp/control/strategies/bitvector_agreement_test.cc::BitsOfRanks.AnIdleJobExchangesNothing",
    ],
    "`synchronize()` spins, and takes the GIL again and again": [
        "frameworks/test_waiting.py::test_waiting_for_a_late_rank_takes_no_processor_time_and_is_noted",
        "frameworks/test_waiting.py::test_other_threads_of_a_rank_run_while_one_waits",
    ],
    "A large operation delays those of other process sets": [
        "frameworks/test_waiting.py::test_an_operation_that_is_held_up_in_one_set_holds_up_no_other",
        "frameworks/test_dynamic_process_sets.py::test_sets_come_and_go_from_one_thread_while_others_use_theirs",
        "cpp/data/backends/shm/shm_test.cc::ShmOperationTest.DoesABoundedAmountOfWorkInOneTest",
    ],
    "Broadcast, reducescatter and barrier are negotiated each time": [
        "inproc/test_cache.py::test_every_operation_is_negotiated_once_and_then_cached",
    ],
    "Names and shapes of all ranks go to rank 0": [
        "inproc/test_cache.py::test_names_are_sent_once_and_cached_steps_send_bits",
        "cpp/testing/control_benchmark_test.cc::ControlBenchmark.WithTheCacheBytesDoNotDependOnNames",
        "cpp/control/strategies/relay_test.cc::RequestMerger.KeepsEqualRequestsOnceAndDifferentOnesApart",
    ],
    "More than 1,024 names, or names with the number of the step, defeat the cache": [
        "inproc/test_cache.py::test_more_names_than_the_default_are_one_warning_and_then_all_cached",
        "inproc/test_cache.py::test_names_that_never_come_back_leave_the_cache_as_it_is",
        "cpp/control/response_cache_test.cc::ResponseCache.GrowsOnlyWhenAnEvictedNameReturnsSoon",
    ],
    "`horovod.run()` switches the cache off and sets the cycle time to 0 silently": [
        "mp/test_run_function.py::test_knobs_that_nobody_set_have_their_defaults",
    ],
    "Every rank connects to every other, which takes more than 30 s on large jobs": [
        "frameworks/numpy/test_jobs.py::test_twenty_four_processes_meet_and_sum",
        "inproc/test_operations.py::test_sixty_four_ranks_agree_and_sum",
        "sim/test_properties.py::test_the_properties_hold_for_1024_ranks",
    ],
    "More than 2^31 elements, or 2 GiB, overflow": [
        "frameworks/test_extremes.py::test_more_elements_than_31_bits_can_count_are_reduced_sent_and_found_behind_them",
        "mpi/test_backend.py::test_calls_are_cut_where_counts_do_not_fit",
        "cpp/control/fusion_planner_test.cc::FusionPlanner.HugeShapesDoNotOverflow",
    ],
    "Sums depend on which tensors happened to be fused": [
        "frameworks/test_same_bits.py::test_groups_cache_mode_and_order_do_not_change_a_bit",
        "cpp/data/folding_collectives_test.cc::ShmAllreduce.AgreesForEveryTileSizeAndSegmentation",
    ],
    "bfloat16, bool and complex tensors are refused": [
        "frameworks/torch/test_operations.py::test_every_dtype_and_shape_is_reduced_exactly",
        "frameworks/numpy/test_operations.py::test_booleans_are_reduced_as_or_and_and",
    ],
    "Groups of gradients hang where one rank lacks one, and take no `gradient_predivide_factor`": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_a_step_changes_what_one_process_would_change_with_the_mean_gradient",
        "frameworks/torch/optimizer/test_optimizer.py::test_the_predivide_factor_divides_before_and_after_also_in_groups",
    ],
    "A sparse gradient that a rank lacks (no word of the table in its batch) hangs the job": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_sparse_gradients_may_be_missing_anywhere_from_the_first_step_on",
    ],
    "Parameters without a gradient on any rank (frozen during training, or unused) get zeros: momentum, weight decay "
    "and Adam move them": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_a_step_changes_what_one_process_would_change_with_the_mean_gradient",
        "frameworks/torch/optimizer/test_unused_parameters.py::test_zeros_for_all_are_there_to_be_asked_for",
    ],
    "`GradScaler.step()` without `optimizer.synchronize()` before it: one rank overflows and only that rank skips the "
    "step": [
        "frameworks/torch/optimizer/test_training_programs.py::test_a_gradient_scaler_skips_the_step_on_all_ranks_where_one_overflows",
    ],
    "Gradients that are clipped or replaced before `synchronize()` are used half changed": [
        "frameworks/torch/optimizer/test_training_programs.py::"
        "test_gradients_that_are_changed_while_they_are_reduced_are_an_error_that_says_what_to_do",
    ],
    "`zero_grad()` takes no `set_to_none`, `step()` takes only a closure": [
        "frameworks/torch/optimizer/test_optimizer.py::test_zero_grad_takes_set_to_none",
        "frameworks/torch/optimizer/test_user_optimizers.py::test_methods_of_the_programs_optimizer_get_what_they_were_given",
    ],
    "Parameters that a callback adds to the plain optimizer, or to the list of a group, are left alone or stepped with "
    "each rank's own gradient": [
        "frameworks/torch/optimizer/test_param_groups.py::test_parameters_that_come_unseen_are_reduced_in_that_very_step",
    ],
    "A scheduler made before wrapping warns of the wrong order": [
        "frameworks/torch/optimizer/test_broadcast_state.py::"
        "test_broadcast_state_is_written_where_schedulers_and_inner_optimizers_have_it",
    ],
    "Copies and pickles of the optimizer fail, or have no `step()`": [
        "frameworks/torch/optimizer/test_user_optimizers.py::test_copies_of_a_wrapped_optimizer_are_distributed",
    ],
    "Two optimizers without names conflict": [
        "frameworks/torch/optimizer/test_several_optimizers.py::"
        "test_optimizers_without_names_work_side_by_side_and_equal_names_take_turns",
        "frameworks/torch/optimizer/test_several_optimizers.py::"
        "test_equal_names_and_the_very_same_parameters_are_an_error_that_says_whose",
    ],
    '`add_process_set()` needs `HOROVOD_DYNAMIC_PROCESS_SETS` or `init(process_sets="dynamic")`': [
        "frameworks/test_dynamic_process_sets.py::test_a_set_is_added_used_removed_and_added_again",
        "frameworks/test_dynamic_process_sets.py::test_sets_come_and_go_from_one_thread_while_others_use_theirs",
    ],
    "The timeline covers rank 0 only, is cut off when the job is killed, and breaks at a quote in a name": [
        "frameworks/test_timeline.py::test_every_rank_writes_what_it_did",
        "frameworks/test_timeline.py::test_a_rank_that_is_killed_leaves_whole_files",
        "frameworks/test_names.py::test_any_bytes_are_a_name_and_the_timeline_of_every_rank_is_json",
        "cpp/observe/trace_file_test.cc::TraceFileTest.AKillAtAnyMomentLeavesAWholeOneAndTheNextStartCleansUp",
    ],
    "Fusion buffers are never freed": [
        "frameworks/numpy/test_jobs.py::test_what_a_job_held_is_given_back_at_shutdown",
        "mp/test_jobs.py::test_init_and_shutdown_60_times_leave_files_threads_and_memory_as_they_were",
    ],
    "The rendezvous listens on an open port, and runs code that it receives": [
        "mp/test_jobs.py::test_a_job_opens_no_port",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AProcessOfAnotherUserIsRefused",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ADirectoryThatOthersMayEnterIsRefused",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ClientsThatSayNothingOrNonsenseDoNotDisturbTheRanks",
        "unit/lint/test_check_pickle.py::test_an_unpickler_outside_the_one_module_is_found",
    ],
    "Secrets are on command lines": ["mp/test_jobs.py::test_a_job_keeps_its_key_out_of_command_lines"],
    "The search for ssh and network interfaces hangs": [
        "mp/test_launcher_usage.py::test_a_mistake_is_one_line_that_names_it",
        "mp/test_jobs.py::test_ranks_of_srun_find_each_other",
        "mp/test_jobs.py::test_torchrun_starts_ranks",
    ],
    "`--output-filename` with `-np 1` fails, and `--thread-affinity` takes one core for all ranks": [
        "mp/test_launcher_output.py::test_the_output_directory_keeps_what_each_rank_wrote",
        "mp/test_launcher_output.py::test_binding_gives_each_rank_its_own_cores",
        "unit/launch/test_horovod_flags.py::test_each_does_what_the_table_says",
    ],
    "It must be compiled for the installed torch, which must be older than 2.1": [
        "contract/test_symbols.py::test_the_binaries_need_no_framework_and_no_mpi",
        "contract/test_wheel.py::test_the_wheel_works_in_a_clean_environment_without_a_compiler",
    ],
    "A backend that could not be compiled is missing silently": [
        "unit/launch/test_horovod_flags.py::test_check_build_lists_what_there_is",
        "mp/test_tools.py::test_the_doctor_finds_nothing_wrong_here_and_shows_every_knob",
    ],
    "The launcher needs setuptools, and fails without it from Python 3.12 on": [
        "contract/test_imports.py::test_the_launcher_and_its_ranks_need_no_setuptools_and_nothing_undeclared",
    ],
    "`torch.compile` breaks the graph at each collective": [
        "frameworks/torch/compile/test_compile.py::test_results_and_gradients_are_those_of_eager_calls",
        "frameworks/torch/compile/test_compile.py::test_no_operation_is_removed_merged_or_moved",
        "frameworks/torch/compile/test_compile.py::test_generated_code_keeps_the_order_where_it_would_save_memory_to_change_it",
        "frameworks/torch/compile/test_compile.py::test_a_training_step_in_one_graph_gives_the_same_parameters",
    ],
    "Nothing for TensorFlow after 2.15 or for Keras 3; one build for each version": [
        "contract/test_symbols.py::test_tensorflows_library_exports_what_python_calls",
        "frameworks/tensorflow/test_operations.py::test_every_operation_and_type",
        "frameworks/tensorflow/test_keras.py::test_fit_equals_one_process_on_the_joint_batch",
    ],
    "Functions that one rank traces more often or in another order hang, as their operations' names contain "
    "TensorFlow's numbers": [
        "frameworks/tensorflow/test_names.py::test_a_rank_may_trace_a_function_more_often_than_others",
        "frameworks/tensorflow/test_names.py::"
        "test_a_function_may_be_traced_by_itself_on_one_rank_and_within_another_one_on_the_next",
        "frameworks/tensorflow/test_names.py::test_keras_may_have_numbered_layers_differently",
        "frameworks/tensorflow/test_order.py::test_gradients_of_branches_and_loops",
    ],
}
