"""The improvements that docs/migration.md promises, row by row, with their tests; see test_promises.py."""

BETTER_THAN_HOROVOD = {
    "A rank that dies leaves the others waiting, or ends them all without a reason": [
        "mp/test_lost_ranks.py::test_a_killed_rank_is_named_on_every_survivor",
    ],
    '"One rank had type float32, but another rank had type int32"': [
        "inproc/test_mismatches.py::test_a_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on",
    ],
    "A tensor that one rank does not submit is reported after minutes, on rank 0, and the ranks wait for it without "
    "end": [
        "cpp/control/stall_test.cc::StallOf.IsReportedOnEveryRankWithTheRanksThatHaveOrLackTheOperation",
        "cpp/control/stall_test.cc::StallOf.FailsAfterTheLimitOnTheRanksThatHaveTheOperation",
        "mp/test_disagreement.py::test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails",
    ],
    "Ranks whose calls without a name come in another order hang": [
        "frameworks/test_names.py::test_mismatched_automatic_names_raise_and_the_job_goes_on",
        "frameworks/test_names.py::test_unnamed_calls_are_matched_by_operation_set_and_call_number",
    ],
    "A name that is in flight is found in the middle of a group, whose other members stay in flight": [
        "inproc/test_groups.py::test_a_group_with_a_name_in_flight_raises_and_frees_the_other_names",
        "cpp/runtime/submission/operation_table_test.cc::OperationTableTest.ARefusedGroupLeavesNoMemberBehind",
    ],
    "A group ends with the status of its last member": [
        "inproc/test_groups.py::test_a_mismatch_in_any_member_fails_the_group",
    ],
    "Process sets that differ between ranks end the job": [
        "frameworks/test_dynamic_process_sets.py::test_adding_different_sets_raises_on_all_ranks_and_the_job_goes_on",
        "frameworks/test_process_sets.py::test_init_raises_if_the_sets_differ_between_ranks",
    ],
    "A name that was an allreduce and becomes a reducescatter ends the job": [
        "inproc/test_cache.py::test_a_name_with_another_operation_is_negotiated_once_and_then_cached",
    ],
    "`join()` works for allreduce only": [
        "inproc/test_join.py::test_operations_on_rows_take_none_from_joined_ranks_and_drop_rows_for_them",
        "inproc/test_join.py::test_reductions_leave_out_joined_ranks",
        "inproc/test_join.py::test_a_rank_may_join_one_set_and_go_on_in_others",
    ],
    "`init()` after `shutdown()` fails over MPI": [
        "mpi/test_jobs.py::test_a_job_can_shut_down_and_start_many_times",
        "mp/test_jobs.py::test_60_inits_and_shutdowns_keep_files_threads_and_memory_constant",
        "frameworks/numpy/test_jobs.py::test_the_runtime_can_be_started_again_after_it_ended",
    ],
    "The ranks exchange messages each millisecond, also when idle": [
        "mp/test_jobs.py::test_an_idle_job_exchanges_no_messages",
        "cpp/control/strategies/bitvector_agreement_test.cc::Bits.LingeringEndsWhenAnyRankWaits",
        "cpp/control/strategies/bitvector_agreement_test.cc::BitsOfRanks.AnIdleJobExchangesNothing",
    ],
    "`synchronize()` spins, and takes the GIL again and again": [
        "frameworks/test_waiting.py::test_waiting_for_a_late_rank_uses_no_processor_time_and_is_counted",
        "frameworks/test_waiting.py::test_other_threads_of_a_rank_run_while_one_waits",
    ],
    "A large operation delays those of other process sets": [
        "frameworks/test_waiting.py::test_a_blocked_operation_in_one_set_does_not_block_other_sets",
        "frameworks/test_dynamic_process_sets.py::test_one_thread_adds_and_removes_sets_while_others_use_theirs",
        "cpp/data/backends/shm/shm_test.cc::ShmOperationTest.DoesABoundedAmountOfWorkInOneTest",
    ],
    "Broadcast, reducescatter and barrier are negotiated each time": [
        "inproc/test_cache.py::test_every_operation_is_negotiated_once_and_then_cached",
    ],
    "Names and shapes of all ranks go to rank 0": [
        "inproc/test_cache.py::test_names_are_sent_once_and_cached_steps_send_bits",
        "cpp/testing/control_benchmark_test.cc::ControlBenchmark.WithTheCacheTheNumberOfBytesDoesNotDependOnNames",
        "cpp/control/strategies/relay_test.cc::RequestMerger.MergesEqualRequestsOnly",
    ],
    "More than 1,024 names, or names with the number of the step, defeat the cache": [
        "inproc/test_cache.py::test_more_names_than_the_default_capacity_give_one_warning_and_are_cached",
        "inproc/test_cache.py::test_names_that_never_return_do_not_make_the_cache_grow",
        "cpp/control/response_cache_test.cc::ResponseCache.GrowsOnlyWhenAnEvictedNameReturnsSoon",
    ],
    "`horovod.run()` switches the cache off and sets the cycle time to 0 silently": [
        "mp/test_run_function.py::test_knobs_that_are_not_set_have_their_defaults",
    ],
    "Every rank connects to every other, which takes more than 30 s on large jobs": [
        "frameworks/numpy/test_jobs.py::test_twenty_four_processes_connect_and_sum",
        "inproc/test_operations.py::test_sixty_four_ranks_agree_and_sum",
        "sim/test_properties.py::test_the_properties_hold_for_1024_ranks",
    ],
    "More than 2^31 elements, or 2 GiB, overflow": [
        "frameworks/test_extremes.py::test_operations_on_more_than_2_to_the_31_elements",
        "mpi/test_backend.py::test_operations_beyond_the_count_limit_are_split_into_several_mpi_calls",
        "cpp/control/fusion_planner_test.cc::FusionPlanner.HugeShapesDoNotOverflow",
    ],
    "Sums depend on which tensors happened to be fused": [
        "frameworks/test_same_bits.py::test_groups_cache_and_fusion_do_not_change_a_bit",
        "cpp/data/folding_collectives_test.cc::ShmAllreduce.AgreesForEveryTileSizeAndSegmentation",
    ],
    "bfloat16, bool and complex tensors are refused": [
        "frameworks/torch/test_operations.py::test_every_dtype_and_shape_is_reduced_exactly",
        "frameworks/numpy/test_operations.py::test_booleans_are_reduced_as_or_and_and",
    ],
    "Groups of gradients hang where one rank lacks one, and take no `gradient_predivide_factor`": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_steps_with_unused_parameters_equal_those_of_one_process",
        "frameworks/torch/optimizer/test_optimizer.py::test_the_predivide_factor_scales_before_and_after_the_sum",
    ],
    "A sparse gradient that a rank lacks (no word of the table in its batch) hangs the job": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_sparse_gradients_may_be_missing_on_any_rank_in_any_step",
    ],
    "Parameters without a gradient on any rank (frozen during training, or unused) get zeros: momentum, weight decay "
    "and Adam move them": [
        "frameworks/torch/optimizer/test_unused_parameters.py::test_steps_with_unused_parameters_equal_those_of_one_process",
        "frameworks/torch/optimizer/test_unused_parameters.py::test_unused_as_zeros_gives_every_parameter_a_gradient",
    ],
    "`GradScaler.step()` without `optimizer.synchronize()` before it: one rank overflows and only that rank skips the "
    "step": [
        "frameworks/torch/optimizer/test_training_programs.py::test_a_gradient_scaler_skips_the_step_on_all_ranks_if_one_overflows",
    ],
    "Gradients that are clipped or replaced before `synchronize()` are used half changed": [
        "frameworks/torch/optimizer/test_gradient_memory.py::test_changing_gradients_before_synchronize_raises",
    ],
    "`zero_grad()` takes no `set_to_none`, `step()` takes only a closure": [
        "frameworks/torch/optimizer/test_optimizer.py::test_zero_grad_takes_set_to_none",
        "frameworks/torch/optimizer/test_user_optimizers.py::test_step_and_zero_grad_pass_on_all_arguments",
    ],
    "Parameters that a callback adds to the plain optimizer, or to the list of a group, are left alone or stepped with "
    "each rank's own gradient": [
        "frameworks/torch/optimizer/test_param_groups.py::test_parameters_added_without_a_method_call_are_reduced_in_that_step",
    ],
    "A scheduler made before wrapping warns of the wrong order": [
        "frameworks/torch/optimizer/test_broadcast.py::"
        "test_broadcast_updates_state_that_schedulers_and_inner_optimizers_share",
    ],
    "Copies and pickles of the optimizer fail, or have no `step()`": [
        "frameworks/torch/optimizer/test_user_optimizers.py::test_copies_of_a_wrapped_optimizer_are_distributed",
    ],
    "Two optimizers without names conflict": [
        "frameworks/torch/optimizer/test_several_optimizers.py::"
        "test_unnamed_optimizers_run_together_and_equal_names_in_turn",
        "frameworks/torch/optimizer/test_several_optimizers.py::test_optimizers_with_an_equal_name_or_parameter_raise",
    ],
    '`add_process_set()` needs `HOROVOD_DYNAMIC_PROCESS_SETS` or `init(process_sets="dynamic")`': [
        "frameworks/test_dynamic_process_sets.py::test_a_set_is_added_used_removed_and_added_again",
        "frameworks/test_dynamic_process_sets.py::test_one_thread_adds_and_removes_sets_while_others_use_theirs",
    ],
    "The timeline covers rank 0 only, is cut off when the job is killed, and breaks at a quote in a name": [
        "frameworks/test_timeline.py::test_every_rank_writes_its_operations",
        "frameworks/test_timeline.py::test_a_killed_rank_leaves_complete_files",
        "frameworks/test_names.py::test_any_bytes_are_a_valid_name_and_timelines_stay_valid_json",
        "cpp/observe/trace_file_test.cc::TraceFileTest.AKillAtAnyMomentLeavesACompleteFileAndTheNextStartCleansUp",
    ],
    "Autotune may keep settings that are slower than the default, and tunes no groups": [
        "unit/autotune/test_search.py::test_a_search_never_ends_worse_than_the_default",
        "unit/autotune/test_search.py::test_a_lucky_first_score_does_not_win",
        "mp/test_autotune.py::test_a_tuned_training_has_the_same_result_and_equal_groups_on_all_ranks",
    ],
    "Fusion buffers are never freed": [
        "frameworks/numpy/test_jobs.py::test_shutdown_frees_the_memory_of_the_job",
        "mp/test_jobs.py::test_60_inits_and_shutdowns_keep_files_threads_and_memory_constant",
    ],
    "The rendezvous listens on an open port, and runs code that it receives": [
        "mp/test_jobs.py::test_a_job_opens_no_port",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.AProcessOfAnotherUserIsRefused",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.ADirectoryThatOthersMayEnterIsRefused",
        "cpp/net/bootstrap/bootstrap_test.cc::Bootstrap.SilentAndInvalidClientsDoNotDisturbTheRanks",
        "unit/lint/test_check_pickle.py::test_an_unpickler_outside_the_one_module_is_found",
    ],
    "Secrets are on command lines": ["mp/test_jobs.py::test_a_job_keeps_its_key_out_of_command_lines"],
    "The search for ssh and network interfaces hangs": [
        "mp/test_launcher_usage.py::test_a_mistake_is_one_line_that_names_the_mistake",
        "mp/test_jobs.py::test_ranks_of_srun_find_each_other",
        "mp/test_jobs.py::test_torchrun_starts_ranks",
    ],
    "`--output-filename` with `-np 1` fails, and `--thread-affinity` takes one core for all ranks": [
        "mp/test_launcher_output.py::test_the_output_directory_has_the_output_of_each_rank",
        "mp/test_launcher_output.py::test_binding_gives_each_rank_its_own_cores",
        "unit/launch/test_horovod_flags.py::test_each_argument_has_the_outcome_of_the_table",
    ],
    "It must be compiled for the installed torch, which must be older than 2.1": [
        "contract/test_symbols.py::test_the_binaries_need_no_framework_and_no_mpi",
        "contract/test_wheel.py::test_the_wheel_works_in_a_clean_environment_without_a_compiler",
    ],
    "A backend that could not be compiled is missing silently": [
        "unit/launch/test_horovod_flags.py::test_check_build_lists_frameworks_and_backends",
        "mp/test_tools.py::test_the_doctor_finds_no_problem_and_shows_every_knob",
    ],
    "The launcher needs setuptools, and fails without it from Python 3.12 on": [
        "contract/test_imports.py::test_the_launcher_and_its_ranks_need_no_undeclared_package",
    ],
    "`torch.compile` breaks the graph at each collective": [
        "frameworks/torch/compile/test_compile.py::test_results_and_gradients_of_reductions_gathers_and_broadcasts_equal_those_of_eager_calls",
        "frameworks/torch/compile/test_compile.py::test_no_operation_is_removed_merged_or_moved",
        "frameworks/torch/compile/test_compile.py::test_generated_code_keeps_the_order_even_if_it_costs_memory",
        "frameworks/torch/compile/test_compile.py::test_a_training_step_in_one_graph_gives_the_same_parameters",
    ],
    "Nothing for TensorFlow after 2.15 or for Keras 3; one build for each version": [
        "contract/test_symbols.py::test_tensorflows_library_exports_the_functions_that_python_calls",
        "frameworks/tensorflow/test_operations.py::test_every_operation_on_every_dtype",
        "frameworks/tensorflow/test_keras.py::test_fit_equals_one_process_on_the_joint_batch",
    ],
    "Functions that one rank traces more often or in another order hang, as their operations' names contain "
    "TensorFlow's numbers": [
        "frameworks/tensorflow/test_names.py::test_a_rank_may_trace_a_function_more_often_than_others",
        "frameworks/tensorflow/test_names.py::test_a_function_may_be_traced_alone_on_one_rank_and_nested_on_another",
        "frameworks/tensorflow/test_names.py::test_keras_layer_numbers_may_differ_between_ranks",
        "frameworks/tensorflow/test_order.py::test_gradients_of_branches_and_loops",
    ],
}
