/* The C interface of horocache, for bindings of other languages and frameworks. The only header of libhorocache.so.
 *
 * Use: hc_start joins the job. hc_submit queues an operation and gives its handle; hc_wait waits for it, hc_outcome
 * tells how it ended, and hc_consume gives the handle back. hc_stop leaves the job, and hc_free frees the runtime.
 *
 * Errors: a function that can fail returns a code of hc_status; 0 is success. If its argument `error` is not null, it
 * stores a message there, which names the rank, the tensor and, in a conflict, both values. The message is empty on
 * success.
 *
 * Threads: functions may be called from any thread.
 *
 * Output: the library prints nothing but warnings, to standard error (see the knob log_level). It does not end the
 * process, with one exception: an MPI call that connects ranks cannot be interrupted, so if such a call does not return
 * in time (knob start_timeout), the library prints the reason and ends the process.
 *
 * "Since version N" names the HC_ABI_VERSION with which a part appeared.
 */
#ifndef HOROCACHE_HC_H
#define HOROCACHE_HC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HC_API
#define HC_API __attribute__((visibility("default")))
#endif
#define HC_ABI_VERSION 13

typedef enum {
  HC_OK = 0,
  HC_INVALID_ARGUMENT, /* a mistake of the caller, which this rank alone has seen */
  HC_NOT_INITIALIZED,
  HC_UNSUPPORTED,    /* no backend or library can do this */
  HC_MISMATCH,       /* ranks submitted requests that do not fit together */
  HC_DUPLICATE_NAME, /* an operation of this name is in flight already */
  HC_STALL,          /* a rank did not submit, or did not answer, in time */
  HC_PEER_LOST,      /* another rank died */
  HC_SHUT_DOWN,      /* this rank or another one has left the job */
  HC_FORKED,         /* used in a child of fork() */
  HC_OUT_OF_MEMORY,
  HC_VERSION_SKEW, /* the ranks run different versions or knobs */
  HC_STARTUP,      /* the ranks could not form the job */
  HC_ABORTED,      /* a rank aborted the job, or `go_on` ended the call */
  HC_CORRUPT,      /* a message or a file does not decode */
  HC_INTERNAL,     /* a defect in horocache */
  HC_NON_FINITE,   /* a tensor has NaN or infinite values, and the knob check_finite is on; since version 3 */
  HC_INPUT_FAILED  /* a rank could not compute its tensor; since version 13 */
} hc_status;

/* One rank's part of a job. Made by hc_start, freed by hc_free. */
typedef struct hc_runtime hc_runtime;

/* An error message. A longer one is cut at the size; it always ends with a zero byte. */
typedef struct {
  char text[4096];
} hc_error;

/* A tensor: compact, row-major memory on the CPU. */
typedef struct {
  void* data;           /* may be null if the tensor has no elements */
  int32_t dtype;        /* index for hc_dtype_name */
  int32_t ndim;         /* number of dimensions; 0 is a scalar */
  const int64_t* shape; /* `ndim` extents; may be null for a scalar */
} hc_tensor;

/* A text of `bytes` bytes of any value, without a zero byte at its end. A null `data` is an empty text. */
typedef struct {
  const char* data;
  size_t bytes;
} hc_text;

/* An operation to be submitted. "Rows" are the slices of a tensor along its first dimension.
 *
 * Members that an operation does not use are 0 or null, except `root` (-1), `prescale` and `postscale` (1).
 *
 * All ranks of the process set must submit the same operation: names, element types and shapes are compared, and so are
 * op, reduce_op, root, prescale, postscale, divide_by, priority, layers and backend. In allgather, alltoall, gather and
 * scatter the number of rows may differ between ranks. A send and its recv must have the same tag, process set, element
 * type and number of elements. */
typedef struct {
  int32_t op;        /* index for hc_op_name */
  int32_t reduce_op; /* 0 average, 1 sum, 3 min, 4 max, 5 product, 6 and, 7 or, 8 xor */
  /* broadcast, reduce, gather, scatter: a rank within the process set. send, recv: the other rank, as its rank in the
   * job. -1 for all other operations. */
  int32_t root;
  int32_t num_tensors; /* number of `inputs`; send and recv take one tensor */
  const hc_tensor* inputs;
  /* allreduce, broadcast, reduce, recv: as many as `inputs`, with the same element types and numbers of elements. An
   * output may be the same memory as its input; a recv passes its tensor as both. In reduce, an output without data
   * means that this rank gets no result, which is allowed on all ranks but the root.
   * allgather, alltoall, gather, reducescatter, scatter: null, and the library allocates the results, see hc_result.
   * Or, since version 12, as many as `inputs`, of the same element types: each has room for its result at least (in a
   * scatter exactly), shares no memory with the inputs, and keeps its values behind the result and in rows that no part
   * covers. */
  const hc_tensor* outputs;
  hc_text name;         /* of the tensor or the group; empty: an automatic name, from the order of submissions */
  const hc_text* names; /* one for each member of a group; null: derived from `name` */
  /* The transformations that the caller applies to the tensors, such as "compression=fp16". The ranks compare the text;
   * the library does not use it otherwise. */
  hc_text layers;
  /* name of the backend, as backend[/algorithm]; empty: the selector chooses. Since version 12 also several, separated
   * by '|', among which it chooses. */
  hc_text backend;
  double prescale, postscale; /* reductions: factors of each input and of the result */
  /* alltoall, reducescatter, scatter at the root: number of rows for each rank of the process set. Null, with a count
   * of 0: equal parts; in reducescatter the first ranks get one row more if the rows cannot be divided evenly. */
  const int64_t* splits;
  int32_t num_splits;
  int32_t group;        /* not 0: the tensors are one group even if there is only one; several always are */
  int32_t wait_follows; /* not 0: the caller waits for this operation next, so the library need not wake its thread */

  /* Since version 2. The lists have one number for each rank of the process set, or are null with a count of 0. */

  /* alltoall, scatter at the root: the row of the tensor at which the part for each rank begins. Parts may overlap.
   * Null: one part follows the other. */
  const int64_t* send_starts;
  /* allgather, alltoall, gather at the root: the number of rows expected from each rank; another number is HC_MISMATCH.
   * Null: any number. */
  const int64_t* receive_rows;
  /* allgather, alltoall, gather at the root: the row of the result at which the part from each rank begins. Rows that
   * no part covers are zero. Null: one part follows the other. */
  const int64_t* receive_starts;
  int32_t num_send_starts, num_receive_rows, num_receive_starts;
  /* 0: all ranks of the job. Otherwise the position of the set in hc_job.sets, counted from 1, or the number that was
   * given to hc_propose_set or hc_declare_set. */
  int32_t process_set;
  /* join: the divisor of averages while ranks have joined. 0: the number of all ranks, 1: the number of ranks that have
   * not joined. */
  int32_t divide_by;
  int32_t tag; /* send, recv: 0 or more; a recv takes a message that was sent with its own tag */

  /* Since version 3. */

  /* Of a group, for the timeline: when its first tensor was ready, in ns of CLOCK_MONOTONIC; 0: unknown. */
  int64_t first_ready_ns;

  /* Since version 6. */

  /* Among the operations that the ranks agree on in one round, those of higher priority run earlier. */
  int32_t priority;
} hc_request;

HC_API int hc_abi_version(void);     /* HC_ABI_VERSION of the library */
HC_API const char* hc_version(void); /* version of horocache */
/* The text of this header, for bindings that are made at run time. */
HC_API const char* hc_header(void);
/* Element types and operations are numbered from 0. A name is such as "float32" or "allreduce"; null if the number is
 * out of range. */
HC_API int hc_num_dtypes(void);
HC_API const char* hc_dtype_name(int dtype);
HC_API int hc_num_ops(void);
HC_API const char* hc_op_name(int op);

/* Some ranks of the job, in ascending order. */
typedef struct {
  const int32_t* ranks;
  int32_t count;
} hc_process_set;

/* A callback of functions that wait. They call it several times a second, on the calling thread. If it returns 0, the
 * wait ends, and a function that returns a code of hc_status returns HC_ABORTED. */
typedef int (*hc_go_on)(void* context);

/* Describes the job beyond the environment. All zeros: nothing to add. */
typedef struct {
  const hc_process_set* sets; /* process sets besides that of all ranks, in the same order on all ranks */
  int32_t num_sets;
  /* Restricts the job to these of the ranks that it would have otherwise. Count 0: no restriction. */
  hc_process_set ranks;
  uint64_t communicator; /* an MPI_Comm, converted to a number, whose ranks form the job; 0: none */
  /* Since version 3. */
  hc_go_on go_on; /* called while the start waits for other ranks, except inside MPI calls; may be null */
  void* context;  /* argument of `go_on` */
  /* Since version 7. */
  const void* programs;  /* compiled programs, as pack_library() of horocache.lang packs them */
  size_t programs_bytes; /* 0: no programs */
  /* Since version 12. Selector rules of a tuning table, in the syntax of HOROCACHE_SELECT; rank 0's hold on all ranks.
   * They come after all other rules, and those for backends that a process set lacks are left out. */
  hc_text tuning;
} hc_job;

/* Joins the job that the environment describes, and waits until all its ranks have come. `names` and `values` are
 * `count` knobs, such as "cycle_time" and "2", which override the environment. `epoch` counts the jobs that this
 * process has joined; without MPI it must be equal on all ranks. `*out` is the runtime, or null after an error. */
HC_API int hc_start(const char* const* names, const char* const* values, int count, uint32_t epoch, hc_runtime** out,
                    hc_error* error);
/* Does the same as hc_start, with a description of the job, which must not be null. Since version 2. */
HC_API int hc_start_job(const char* const* names, const char* const* values, int count, const hc_job* job,
                        uint32_t epoch, hc_runtime** out, hc_error* error);
/* Leaves the job and joins all threads of the runtime. Pending operations fail with HC_SHUT_DOWN. Calls after the first
 * do nothing. */
HC_API void hc_stop(hc_runtime* runtime);
/* Leaves the job with the process, which is about to end. Returns 1 if the rank leaves when exit() is called; the other
 * ranks then learn the exit code, too. Until then pending operations go on, and neither the runtime nor the memory of
 * these operations may ever be freed. Returns 0 if the runtime has been stopped at once, as by hc_stop. Since version
 * 2. */
HC_API int hc_stop_with_process(hc_runtime* runtime);
/* If an operation has failed, warns once where the flight record is; hc_abort does so, too. Since version 2. */
HC_API void hc_log_record_path(hc_runtime* runtime);
/* Stops the runtime if necessary, and frees it. Results that were not taken with hc_take_result become invalid. */
HC_API void hc_free(hc_runtime* runtime);
/* To be called in a child of fork(): closes the runtime's descriptors. Afterwards hc_get still answers, as in the
 * parent except that HC_ALIVE is 0. No other function may use the runtime, and it must not be freed. */
HC_API void hc_forked_child(hc_runtime* runtime);

typedef enum {
  HC_RANK,        /* rank in the job */
  HC_SIZE,        /* number of ranks in the job */
  HC_LOCAL_RANK,  /* rank among the ranks of this host */
  HC_LOCAL_SIZE,  /* number of ranks on this host */
  HC_CROSS_RANK,  /* number of this host, from 0 */
  HC_CROSS_SIZE,  /* number of hosts */
  HC_ALIVE,       /* 1 until the runtime is stopped, then 0 */
  HC_MPI,         /* 0 without MPI, 1 if one thread at a time may call MPI, 2 if any thread may */
  HC_HOMOGENEOUS, /* 1 if every host has the same number of ranks, else 0. Since version 9 */
  HC_NCCL         /* the version of NCCL that CUDA tensors can use, for example 22809; 0: none. Since version 11 */
} hc_property;
/* The value of a property; -1 for an unknown one. */
HC_API int hc_get(hc_runtime* runtime, hc_property property);
/* HC_RANK is this rank's number within a process set, or -1 if it is not a member. HC_SIZE is the number of the set's
 * ranks, or 0 if there is no set of that number. Other properties have no meaning here. Since version 4. */
HC_API int hc_get_in_set(hc_runtime* runtime, int32_t number, hc_property property);

/* Queues an operation and stores its handle. The request is copied. The memory of the tensors is not: it must stay
 * valid, and the caller must not change it, until the operation is done. */
HC_API int hc_submit(hc_runtime* runtime, const hc_request* request, int64_t* handle, hc_error* error);
/* 1 if the operation is done, 0 if it is not yet, -1 if the handle is unknown. */
HC_API int hc_poll(hc_runtime* runtime, int64_t handle);
/* Values of `timeout_s` for a wait without a time limit. The check whether ranks wait for each other in a circle counts
 * only such waits. */
enum {
  /* The thread does nothing else until the operation is done. */
  HC_WAIT_FOR_GOOD = -1,
  /* The same, but the thread belongs to a pool, and other threads of the pool may submit operations meanwhile. Since
   * version 8. */
  HC_WAIT_FOR_GOOD_IN_POOL = -2
};
/* Waits until the operation is done: at most `timeout_s` seconds, or without a limit for the constants above. `go_on`
 * may be null. Returns 1 if the operation is done, 0 if it is not (the time has passed, or `go_on` has ended the wait),
 * -1 if the handle is unknown, or if another thread has consumed it meanwhile. Before version 5 without `go_on` and
 * `context`. */
HC_API int hc_wait(hc_runtime* runtime, int64_t handle, double timeout_s, hc_go_on go_on, void* context);
/* The outcome of an operation that is done. HC_INVALID_ARGUMENT also if the handle is unknown or the operation is not
 * done. The handle stays valid. */
HC_API int hc_outcome(hc_runtime* runtime, int64_t handle, hc_error* error);
/* The results of an operation that is done: their number, and result `index`, counted from 0. Its data is null if the
 * caller gave the memory for it. `*rows` has the number of rows received from each rank of the process set
 * (reducescatter: the rows for each rank), and `*num_rows` is the number of ranks; null and 0 if there are no rows.
 * hc_result returns HC_INVALID_ARGUMENT if there is no such result. The results, their shapes and the rows are valid
 * until hc_consume. */
HC_API int hc_num_results(hc_runtime* runtime, int64_t handle);
HC_API int hc_result(hc_runtime* runtime, int64_t handle, int index, hc_tensor* out, const int64_t** rows,
                     int* num_rows);
/* The number of ranks by which an average over the ranks' parts of a result divides; it depends on the ranks that have
 * joined. 0 if there is no such result. Since version 4. */
HC_API int hc_divisor(hc_runtime* runtime, int64_t handle, int index);
/* Gives the memory of a result to the caller, who frees it with free(). Null if there is no such result. Since version
 * 4. */
HC_API void* hc_take_result(hc_runtime* runtime, int64_t handle, int index);
/* The rank that joined last, for an operation `join` that is done; -1 otherwise. */
HC_API int hc_last_joined(hc_runtime* runtime, int64_t handle);
/* Gives the handle back. HC_INVALID_ARGUMENT if the handle is unknown or the operation is not done. */
HC_API int hc_consume(hc_runtime* runtime, int64_t handle);

/* Process sets that are added and removed while the job runs. Since version 3. Every rank of the job, member or not,
 * makes these calls, in the same order.
 *
 * To add a set:
 * 1. All ranks choose one number that is not less than the hc_next_set of any rank.
 * 2. hc_propose_set submits an operation in which the ranks agree. Wait for it and consume it like any other.
 * 3. When the operation has succeeded, hc_connect_set connects the members on each host.
 * 4. When hc_connect_set has succeeded on all ranks, hc_open_set connects the hosts and opens the set.
 * If the operation, hc_connect_set or hc_open_set fails on a rank, all ranks must call hc_drop_set, which undoes the
 * addition. The library does not tell the ranks whether a step has succeeded everywhere: the caller must.
 *
 * To remove a set: hc_propose_removal submits an operation in which the ranks agree. When it has succeeded,
 * hc_leave_set removes the set.
 *
 * `go_on` may be null. */
HC_API int32_t hc_next_set(hc_runtime* runtime);
HC_API int hc_propose_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, int64_t* handle,
                          hc_error* error);
/* Begins the addition of a set that its members make among themselves. Only the members call it, instead of
 * hc_propose_set and without an operation, and "all ranks" above means the members. It may have the ranks
 * of another set. To remove it, the members call hc_leave_set, without hc_propose_removal. */
HC_API int hc_declare_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, hc_error* error);
HC_API int hc_connect_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error);
HC_API int hc_open_set(hc_runtime* runtime, int32_t number, hc_error* error);
HC_API int hc_propose_removal(hc_runtime* runtime, int32_t number, int64_t* handle, hc_error* error);
HC_API int hc_leave_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error);
HC_API int hc_drop_set(hc_runtime* runtime, int32_t number, hc_error* error);

/* Starts the timeline: a file, in Chrome's trace format, of the operations of this rank. Rank 0 writes `path`, the
 * other ranks write beside it: "t.json", "t.rank1.json" and so on. `mark_rounds`, if not 0, adds the rounds in which
 * the ranks agree. HC_INVALID_ARGUMENT if a timeline is on already, or if the file cannot be written. hc_stop_timeline
 * ends the file; it does nothing if no timeline is on. Since version 3. */
HC_API int hc_start_timeline(hc_runtime* runtime, const char* path, int mark_rounds, hc_error* error);
HC_API void hc_stop_timeline(hc_runtime* runtime);

/* How an interpreter writes the stacks of its threads to a file. First the library asks a thread of the interpreter: it
 * waits for `ask`, takes the interpreter's lock, writes the stacks, and sets `answer`. If that thread does not answer,
 * the library sends `signal` to the main thread. There the signal's handler writes the stacks, but only if the main
 * thread has the interpreter's lock. */
typedef struct {
  int file;                /* descriptor to which the stacks are written */
  int ask;                 /* eventfd for which the interpreter's thread waits; -1: there is no such thread */
  int answer;              /* eventfd that the thread sets; -1: there is no such thread */
  int signal;              /* signal whose handler writes the stacks */
  int (*keeps_lock)(void); /* returns not 0 if the calling thread has the interpreter's lock; called in the handler */
} hc_stacks;
/* From now on stall reports and dumps show the stacks of the program's threads. The library installs a handler of its
 * own, which calls the present handler of the signal; HC_UNSUPPORTED if there is none. The descriptors stay the
 * caller's. Calls of files below `own_folder` count as the binding's own. Since version 3; in this form since
 * version 7. */
HC_API int hc_watch_stacks(hc_runtime* runtime, const hc_stacks* stacks, const char* own_folder, hc_error* error);
/* Calls `visit` for every backend of a process set, in the order of preference, with its name, its algorithms and its
 * operations. Both lists are separated by commas; the first algorithm is the default. Texts are valid during the call.
 * Since version 12. */
HC_API void hc_backends(hc_runtime* runtime, int32_t process_set,
                        void (*visit)(void* context, const char* name, const char* algorithms, const char* operations),
                        void* context);

/* Changes settings of the process set of all ranks, on all ranks, in one round, soon after the call; only rank 0 may
 * call it. Several calls have a round each, in their order. `settings` has at most 256 KiB, in lines name=value:
 * fusion_threshold (bytes), cycle_time (milliseconds), cache (0 or 1), table (selector rules of a tuning table, which
 * replace those that there were), note (any text without a line feed, for the callers on all ranks). An error changes
 * nothing. Changes whose round has not come when the job ends are lost; later calls fail with the reason of the end.
 * Since version 12. */
HC_API int hc_configure(hc_runtime* runtime, const char* settings, hc_error* error);
/* How often this rank has changed its settings; an operation that was submitted afterwards runs with the new ones.
 * `visit`, unless null, gets the last note. Since version 12. */
HC_API uint64_t hc_settings(hc_runtime* runtime, void (*visit)(void* context, const char* note), void* context);

/* A completed operation. Texts are empty where there is nothing to say. `bytes` are those of this rank's tensors. Times
 * are in ns of CLOCK_MONOTONIC; 0: the operation did not reach that point. Since version 12. */
typedef struct {
  const char *name, *op, *reduce_op, *dtype;
  const char *backend, *algorithm;
  const char* chosen_by; /* what chose them: "call", "rule", "table", or "order", the order of the backends */
  const char *layers, *error;
  int32_t process_set, tensors;
  int64_t bytes;
  uint64_t sequence; /* equal for operations that ran as one; of a message its number */
  uint32_t fused;    /* the number of operations that ran as one */
  int32_t peer;      /* of a message: the other rank, else -1 */
  int64_t submitted_ns, agreed_ns, started_ns, ended_ns;
} hc_record;
/* Begins to list completed operations, at most `capacity`: a longer list loses its oldest. 0 ends the list and drops
 * what is in it. Since version 12. */
HC_API void hc_log_operations(hc_runtime* runtime, uint64_t capacity);
/* Calls `visit` for the operations that were listed since the last call, oldest first, and returns how many were lost.
 * Since version 12. */
HC_API uint64_t hc_take_log(hc_runtime* runtime, void (*visit)(void* context, const hc_record* record), void* context);

/* Aborts the job: the pending operations of all ranks fail with HC_ABORTED and the reason `why`. */
HC_API void hc_abort(hc_runtime* runtime, const char* why);

/* Allocates `bytes` of memory for a tensor, in whole cache lines, and stores its address in `*data`. The memory is
 * shared with the other ranks of this host, so that collectives work on it in place. If no more memory can be shared,
 * it is private; the library warns of that once. The memory stays valid until hc_free_memory, even after hc_free.
 * Returns null if no memory is left, or if `bytes` is negative. Since version 6. */
typedef struct hc_memory hc_memory;
HC_API hc_memory* hc_allocate(hc_runtime* runtime, int64_t bytes, void** data);
HC_API void hc_free_memory(hc_memory* memory);
/* 1 if `data` lies in shared memory of hc_allocate, otherwise 0. */
HC_API int hc_is_shared(hc_runtime* runtime, const void* data);

/* Counts a step of an optimizer, for hc_metrics. Since version 6. */
HC_API void hc_count_step(hc_runtime* runtime);
/* Calls `visit` for every counter, with its name and value. Names are valid during the call. */
HC_API void hc_metrics(hc_runtime* runtime, void (*visit)(void* context, const char* name, uint64_t value),
                       void* context);
/* Calls `visit` for every knob of the runtime, with its name, its value and the source of the value: "default",
 * "environment", "horovod environment" or "argument". Texts are valid during the call. */
HC_API void hc_knobs(hc_runtime* runtime,
                     void (*visit)(void* context, const char* name, const char* value, const char* source),
                     void* context);

/* A table of the functions that kernels of a framework need, for libraries that are loaded beside this one and cannot
 * link it. Each member is the function hc_<member>. Since version 4. */
typedef struct {
  int abi_version; /* HC_ABI_VERSION of the library */
  int (*get)(hc_runtime*, hc_property);
  int (*get_in_set)(hc_runtime*, int32_t, hc_property);
  int (*submit)(hc_runtime*, const hc_request*, int64_t*, hc_error*);
  int (*poll)(hc_runtime*, int64_t);
  int (*wait)(hc_runtime*, int64_t, double, hc_go_on, void*);
  int (*outcome)(hc_runtime*, int64_t, hc_error*);
  int (*result)(hc_runtime*, int64_t, int, hc_tensor*, const int64_t**, int*);
  int (*divisor)(hc_runtime*, int64_t, int);
  void* (*take_result)(hc_runtime*, int64_t, int);
  int (*last_joined)(hc_runtime*, int64_t);
  int (*consume)(hc_runtime*, int64_t);
  void (*count_step)(hc_runtime*); /* since version 6 */
} hc_api;
/* The table of this library, which is valid until the process ends. Since version 4. */
HC_API const hc_api* hc_get_api(void);

#ifdef __cplusplus
}
#endif
#endif
