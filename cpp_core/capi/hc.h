/* The C interface of horocache: what other languages and frameworks bind to. The only header of libhorocache.so.
 *
 * Every function that can fail returns a code (0 is success; the numbers are those of hc_status) and, if `error` is not
 * null, fills it with a text that names rank, tensor and both values. Functions may be called from any thread. The
 * library neither prints nor exits.
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
#define HC_ABI_VERSION 8

typedef enum {
  HC_OK = 0,
  HC_INVALID_ARGUMENT,
  HC_NOT_INITIALIZED,
  HC_UNSUPPORTED,
  HC_MISMATCH,
  HC_DUPLICATE_NAME,
  HC_STALL,
  HC_PEER_LOST,
  HC_SHUT_DOWN,
  HC_FORKED,
  HC_OUT_OF_MEMORY,
  HC_VERSION_SKEW,
  HC_STARTUP,
  HC_ABORTED,
  HC_CORRUPT,
  HC_INTERNAL,
  HC_NON_FINITE /* since version 3 */
} hc_status;

typedef struct hc_runtime hc_runtime;

/* Cut at its size; always ends with a zero byte. */
typedef struct {
  char text[4096];
} hc_error;

/* Compact, row-major memory on the CPU. `dtype` is an index for hc_dtype_name. */
typedef struct {
  void* data;
  int32_t dtype;
  int32_t ndim;
  const int64_t* shape;
} hc_tensor;

/* `bytes` bytes of any value; a null `data` is an empty text. */
typedef struct {
  const char* data;
  size_t bytes;
} hc_text;

typedef struct {
  int32_t op;        /* index for hc_op_name */
  int32_t reduce_op; /* 0 average, 1 sum, 3 min, 4 max, 5 product, 6 and, 7 or, 8 xor */
  int32_t root;      /* -1 where the operation has none */
  int32_t num_tensors;
  const hc_tensor* inputs;
  const hc_tensor* outputs; /* as many, may be the inputs, without data where this rank gets no result; null: the
                               library allocates, see hc_result */
  hc_text name;             /* of the tensor or the group; empty: an automatic name */
  const hc_text* names;     /* of a group's members; null: derived from `name` */
  hc_text layers;           /* such as "compression=fp16" */
  hc_text backend;          /* empty: the selector chooses */
  double prescale, postscale;
  const int64_t* splits; /* alltoall, scatter at the root, reducescatter: rows for each rank; null for none */
  int32_t num_splits;
  int32_t group;        /* not 0: the tensors are one group even if there is only one */
  int32_t wait_follows; /* not 0: the caller waits for it next */
  /* Since version 2. One number for each rank, or null and 0. */
  const int64_t* send_starts;    /* alltoall, scatter at the root: the row of the tensor at which the part for a rank
                                    begins; null: one part after the other */
  const int64_t* receive_rows;   /* allgather, alltoall, gather at the root: the rows expected; null: whatever comes */
  const int64_t* receive_starts; /* there: the row of the result at which the part from a rank begins, with zeros where
                                    there is none; null: one part after the other */
  int32_t num_send_starts, num_receive_rows, num_receive_starts;
  int32_t process_set; /* 0: all ranks; else the place, from 1, in hc_start_job's list, or the number given to
                          hc_propose_set. `root` counts within the set */
  int32_t divide_by;   /* join: what an average divides by from then on; 0: all ranks, 1: those that have data */
  int32_t tag;         /* send, recv: `root` is the other rank, of the job; a recv's output is its input */
  /* Since version 3. */
  int64_t
      first_ready_ns; /* of a group, for the timeline: the time of CLOCK_MONOTONIC when its first tensor was there */
  /* Since version 6. */
  int32_t priority; /* of operations that are agreed on in one round, higher ones run earlier; equal on all ranks */
} hc_request;

HC_API int hc_abi_version(void);
HC_API const char* hc_version(void);
/* The text of this header, for bindings that are made at run time. */
HC_API const char* hc_header(void);
HC_API int hc_num_dtypes(void);
HC_API const char* hc_dtype_name(int dtype); /* null out of range */
HC_API int hc_num_ops(void);
HC_API const char* hc_op_name(int op);

/* Some ranks of the job, ascending. */
typedef struct {
  const int32_t* ranks;
  int32_t count;
} hc_process_set;

/* Asked several times a second by calls that wait; 0 ends the call, with HC_ABORTED where it gives a code. */
typedef int (*hc_go_on)(void* context);

typedef struct {
  const hc_process_set* sets; /* besides that of all ranks, in the same order on all ranks */
  int32_t num_sets;
  hc_process_set ranks;  /* the job is these ranks of what it would be otherwise; count 0: all */
  uint64_t communicator; /* an MPI_Comm, as a number, whose ranks are the job's; 0: none */
  /* Since version 3. */
  hc_go_on go_on; /* called during waits for other ranks; may be null */
  void* context;
  /* Since version 7. */
  const void* programs;  /* as horocache.lang.packed.pack_library() makes them */
  size_t programs_bytes; /* 0: there are none */
} hc_job;

/* Joins the job that the environment describes; `names` and `values` are knobs that override it. */
HC_API int hc_start(const char* const* names, const char* const* values, int count, uint32_t epoch, hc_runtime** out,
                    hc_error* error);
/* The same with more about the job. Since version 2. */
HC_API int hc_start_job(const char* const* names, const char* const* values, int count, const hc_job* job,
                        uint32_t epoch, hc_runtime** out, hc_error* error);
/* Leaves the job and joins all threads. Pending operations fail with HC_SHUT_DOWN. */
HC_API void hc_stop(hc_runtime* runtime);
/* The same for a process that is about to end: the others hear of it when exit() is called, and with which code.
 * Returns 1 then: what is pending goes on meanwhile, and neither the runtime nor the memory of these operations may
 * ever be freed. 0 if it has been stopped at once. Since version 2. */
HC_API int hc_stop_with_process(hc_runtime* runtime);
/* Warns once where the flight record is, if an operation has failed; hc_abort does so, too. Since version 2. */
HC_API void hc_tell_record(hc_runtime* runtime);
/* Stops it if need be, and frees it. Results not consumed become invalid. */
HC_API void hc_free(hc_runtime* runtime);
/* In a child of fork(): closes descriptors. Afterwards hc_get still answers, as in the parent except that HC_ALIVE is
 * 0; nothing else may use the runtime, or free it. */
HC_API void hc_forked_child(hc_runtime* runtime);

typedef enum {
  HC_RANK,
  HC_SIZE,
  HC_LOCAL_RANK,
  HC_LOCAL_SIZE,
  HC_CROSS_RANK,
  HC_CROSS_SIZE,
  HC_ALIVE,
  HC_MPI
} hc_property;
/* HC_MPI: 0 without MPI, 1 if one thread at a time may call it, 2 if any may. */
HC_API int hc_get(hc_runtime* runtime, hc_property property);
/* HC_RANK and HC_SIZE within a process set: -1 for a rank outside of it, 0 ranks where there is none of that number.
 * Since version 4. */
HC_API int hc_get_in_set(hc_runtime* runtime, int32_t number, hc_property property);

/* Queues an operation. The tensors' memory must stay valid until it is done. */
HC_API int hc_submit(hc_runtime* runtime, const hc_request* request, int64_t* handle, hc_error* error);
/* 1 done, 0 not yet, -1 no such handle. */
HC_API int hc_poll(hc_runtime* runtime, int64_t handle);
/* How a thread waits that has no time limit. Only such waits count when ranks wait for each other in a circle. */
enum {
  HC_WAIT_FOR_GOOD = -1,
  /* The thread is one of a pool, of which others may submit meanwhile. Since version 8. */
  HC_WAIT_FOR_GOOD_IN_POOL = -2
};
/* Waits at most `timeout_s`, or as the constants above say. `go_on` may be null. 1 done, 0 not yet, -1 no such handle.
 * Without `go_on` before version 5. */
HC_API int hc_wait(hc_runtime* runtime, int64_t handle, double timeout_s, hc_go_on go_on, void* context);
/* The outcome of an operation that is done; the handle stays. */
HC_API int hc_outcome(hc_runtime* runtime, int64_t handle, hc_error* error);
/* Tensors that the library allocated for an operation that is done, and the rows from each rank (null if it has none).
 * Valid until hc_consume. */
HC_API int hc_num_results(hc_runtime* runtime, int64_t handle);
HC_API int hc_result(hc_runtime* runtime, int64_t handle, int index, hc_tensor* out, const int64_t** rows,
                     int* num_rows);
/* How many ranks an average of the parts of a result divides by; 0 if there is none. Since version 4. */
HC_API int hc_divisor(hc_runtime* runtime, int64_t handle, int index);
/* The memory of a result, which is the caller's from now on, for free(). Null if there is none. Since version 4. */
HC_API void* hc_take_result(hc_runtime* runtime, int64_t handle, int index);
/* The last rank that joined, for an operation `join` that is done; -1 otherwise. */
HC_API int hc_last_joined(hc_runtime* runtime, int64_t handle);
/* Gives the handle back. Not before the operation is done. */
HC_API int hc_consume(hc_runtime* runtime, int64_t handle);
/* Process sets that come and go; since version 3. Every rank of the job calls these, in the same order. A new set needs
 * a number that is hc_next_set's or greater on all ranks. The ranks agree in an operation, to be waited for and
 * consumed like any other. When it is done, hc_meet_set and, when that has succeeded on all ranks, hc_enter_set
 * complete the addition, and hc_leave_set the removal. If one of the former fails on a rank, all ranks must call
 * hc_drop_set, which undoes everything; how they tell each other is the caller's affair. `go_on` may be
 * null. */
HC_API int32_t hc_next_set(hc_runtime* runtime);
HC_API int hc_propose_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, int64_t* handle,
                          hc_error* error);
/* Instead, by the members of the set alone, without an operation; "all ranks" then means these. Its removal takes no
 * operation either. */
HC_API int hc_declare_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, hc_error* error);
HC_API int hc_meet_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error);
HC_API int hc_enter_set(hc_runtime* runtime, int32_t number, hc_error* error);
HC_API int hc_propose_removal(hc_runtime* runtime, int32_t number, int64_t* handle, hc_error* error);
HC_API int hc_leave_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error);
HC_API int hc_drop_set(hc_runtime* runtime, int32_t number, hc_error* error);
/* The file of what this rank does, in Chrome's trace format: rank 0 writes `path`, the others next to it. Since version
 * 3. Stopping what is not on does nothing. */
HC_API int hc_start_timeline(hc_runtime* runtime, const char* path, int mark_rounds, hc_error* error);
HC_API void hc_stop_timeline(hc_runtime* runtime);
/* How an interpreter writes the stacks of its threads to `file`: a thread of it waits for the event `ask` (of eventfd),
 * takes the interpreter's lock, writes, and sets `answer`; -1 where there is none. If it does not answer, the handler
 * that `signal` has does the same in the main thread, if keeps_lock() is not 0 there. */
typedef struct {
  int file;
  int ask;
  int answer;
  int signal;
  int (*keeps_lock)(void);
} hc_stacks;
/* From now on stall reports and dumps show the stacks of the program's threads. Puts a handler of its own around that
 * of the signal. Calls of files below `own_folder` are the library's own. Since version 7, with fewer ways since 3. */
HC_API int hc_watch_stacks(hc_runtime* runtime, const hc_stacks* stacks, const char* own_folder, hc_error* error);
HC_API void hc_abort(hc_runtime* runtime, const char* why);

/* Memory of whole cache lines for a tensor, shared with the other ranks of this host, so that collectives work on it
 * where it is; private memory, with one warning, where no more can be shared. It stays until hc_free_memory, also after
 * hc_free. Null if there is no memory at all. Since version 6. */
typedef struct hc_memory hc_memory;
HC_API hc_memory* hc_allocate(hc_runtime* runtime, int64_t bytes, void** data);
HC_API void hc_free_memory(hc_memory* memory);
/* 1 if `data` lies in shared memory of hc_allocate. */
HC_API int hc_is_shared(hc_runtime* runtime, const void* data);

/* Counts a step of an optimizer, for hc_metrics. Since version 6. */
HC_API void hc_count_step(hc_runtime* runtime);
/* Calls `visit` for every counter. */
HC_API void hc_metrics(hc_runtime* runtime, void (*visit)(void* context, const char* name, uint64_t value),
                       void* context);
/* Calls `visit` for every knob of the runtime: its value and where it came from. */
HC_API void hc_knobs(hc_runtime* runtime,
                     void (*visit)(void* context, const char* name, const char* value, const char* source),
                     void* context);

/* The functions that kernels of a framework need, for libraries that are loaded beside this one and may not link it.
 * Since version 4. */
typedef struct {
  int abi_version;
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
HC_API const hc_api* hc_get_api(void);

#ifdef __cplusplus
}
#endif
#endif
