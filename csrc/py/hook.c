/* The hook: replaces CPython's frame evaluation function (PEP 523) while at least one region is armed and not paused.
 *
 * A region lasts from cc_hook_arm to cc_hook_disarm on one thread; each thread has a list of them, innermost first. The
 * process-wide function is installed only while some region listens, so that code outside of regions, and code that
 * runs during a pause, keeps CPython's full speed and recursion limits: unless another thread's region listens, as
 * that thread's frames then pass through our function, and take C stack. If a thread runs out of it, all
 * regions give way (run_by_cpython). The GIL protects all state except the thread-local list. */
#include "py_int.h"

#include <pthread.h>
#include <inttypes.h>

typedef struct Region {
    struct Region *outer;
    struct Region *next; /* of all threads */
    CcObserver *obs;
    CcAct *top;  /* innermost act of this region */
    int granted; /* C calls added to the thread's limit (3.12) */
    bool paused;
} Region;

static _Thread_local Region *innermost;
static _Thread_local PyFunctionObject *expected; /* the function whose frame cc_act_call_rebuilt waits for */
/* when that wait began: whether the collector was enabled, and the evaluation function */
static _Thread_local bool collects;
static _Thread_local _PyFrameEvalFunction found;
/* lowest usable address of this thread's C stack; 0: not determined yet, 1: unknown */
static _Thread_local uintptr_t stack_low;
static _Thread_local size_t stack_size; /* 0: unknown */
static Region *all;
static int n_armed, n_listening;
/* frames that CPython runs because their thread lacks C stack: nothing listens meanwhile */
static int n_cramped;
static _Thread_local int n_cramped_here;
static CcHookIdle guest_idle; /* cc_hook_set_guest */
static const char *guest_module;
static _PyFrameEvalFunction displaced; /* the guest's function while ours replaces it */
static PyObject *noop;                 /* lambda: None */

enum {
    STACK_RESERVE = 256 << 10, /* bytes that must remain for whatever a frame calls */
    STACK_CALL = 64 << 10,     /* needed in addition when a compiled call begins: it may rebuild frames */
    STACK_LEAST = 48 << 10,    /* what CPython's own evaluator needs */
    STACK_PER_GRANT = 1600,    /* bytes of C stack for each granted C call */
};

/* ------------------------------------------------------------------ C stack */

/* Once per thread: for the main thread glibc reads all of /proc/self/maps, which takes 1 ms in a process with torch. */
static void find_stack(void) {
    if (stack_low) return;
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        if (pthread_attr_getstack(&attr, &low, &size) != 0) size = 0;
        pthread_attr_destroy(&attr);
    }
    stack_low = size ? (uintptr_t)low : 1;
    stack_size = size;
}

/* Whether that many bytes of C stack are left. On a stack other than the thread's own (a C coroutine) the answer is
 * yes. */
static bool has_room(size_t bytes) {
    find_stack();
    const uintptr_t left = (uintptr_t)__builtin_frame_address(0) - stack_low;
    return left >= stack_size || left > bytes;
}

static void raise_no_stack(void) {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded (no C stack left)");
}

bool cc_hook_has_least_room(void) {
    const bool room = has_room(STACK_LEAST);
    if (!room) raise_no_stack();
    return room;
}

bool cc_hook_has_room(void) { return has_room(STACK_RESERVE + STACK_CALL); }

static int grant_for_stack(void) {
    int wanted = cc_frame_grant_wanted();
    if (wanted) find_stack();
    size_t fits = stack_size / STACK_PER_GRANT;
    return fits < (size_t)wanted ? (int)fits : wanted;
}

/* ------------------------------------------------------------------ the evaluation function */

static PyObject *evaluate(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwing);

static _PyFrameEvalFunction swap_function(_PyFrameEvalFunction by) {
    PyInterpreterState *interp = PyInterpreterState_Main();
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (now != by) _PyInterpreterState_SetEvalFrameFunc(interp, by);
    return now;
}

/* Reinstalls the function that ours has replaced. */
static void withdraw(void) {
    if (_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Main()) != evaluate) return;
    swap_function(displaced ? displaced : _PyEval_EvalFrameDefault);
    displaced = NULL;
}

/* Leaves a frame that we have no stack for to CPython, which needs less: while no hook is installed, its
 * Python-to-Python calls take no C stack. So all threads' regions cease to listen, and none begins to, until the frame
 * ends. */
static PyObject *run_by_cpython(PyThreadState *ts, void *frame) {
    for (Region *region = all; region; region = region->next)
        if (!region->paused) region->obs->dead = true;
    withdraw();
    n_cramped++, n_cramped_here++;
    PyObject *value = _PyEval_EvalFrameDefault(ts, frame, 0);
    n_cramped--, n_cramped_here--;
    return value;
}

static PyObject *refuse(PyThreadState *ts, void *frame) {
    raise_no_stack();
    cc_frame_finish(ts, frame);
    return NULL;
}

/* Frames of a thread without regions. Half of a small stack may be in use before regions of other threads give way. */
static PyObject *run_outside(PyThreadState *ts, void *frame, int throwing) {
    if (throwing || has_room(stack_size / 2 < STACK_RESERVE ? stack_size / 2 : STACK_RESERVE))
        return _PyEval_EvalFrameDefault(ts, frame, throwing);
    return run_by_cpython(ts, frame);
}

/* Whether the evaluator can run the frame: a function or plain generator with fast locals, whose globals and builtins
 * are plain dicts. */
static bool runnable(PyThreadState *ts, void *frame, PyCodeObject *co) {
    const int never = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if (!(co->co_flags & CO_OPTIMIZED) || (co->co_flags & never)) return false;
    if (!cc_frame_in_thread(frame) && !cc_frame_in_generator(frame)) return false;
    return PyDict_CheckExact(cc_frame_globals(frame)) && PyDict_CheckExact(cc_frame_builtins(frame)) &&
           !cc_frame_traced(ts, co);
}

static bool listens(Region *region, PyThreadState *ts, void *frame, bool throwing) {
    if (region->paused || region->obs->dead || (PyObject *)cc_frame_func(frame) == noop) return false;
    return (!throwing || cc_frame_in_generator(frame)) && runnable(ts, frame, cc_frame_code(frame));
}

/* Until the frame arrives, no other code may run, as it could call the same function: CPython 3.11 collects garbage
 * when it allocates the call's arguments, and calls callbacks and finalisers. */
static void expect(PyFunctionObject *func) {
    collects = PyGC_Disable();
    found = swap_function(evaluate); /* ours may have given way */
    expected = func;
}

static void stop_expecting(void) {
    if (!expected) return;
    expected = NULL;
    swap_function(found);
    if (collects) PyGC_Enable();
}

static bool arrives(void *frame, bool throwing) {
    const bool is = expected && !throwing && cc_frame_func(frame) == expected;
    if (is) stop_expecting();
    return is;
}

/* The result with which a dead observer replaces the call; NULL: it does not. */
static PyObject *replacement_result(Region *region, PyThreadState *ts, void *frame, bool throwing) {
    const CcObserver *obs = region->obs;
    if (throwing || region->paused || !obs->dead || !obs->answer || cc_frame_in_generator(frame)) return NULL;
    PyObject *result = obs->answer(region->obs, (PyObject *)cc_frame_func(frame));
    if (result) cc_frame_finish(ts, frame);
    return result;
}

PyObject *cc_hook_run_unrecorded(PyThreadState *ts, void *frame, int throwing) {
    PyObject *value = _PyEval_EvalFrameDefault(ts, frame, throwing);
    if (!value) cc_obj_hide_frame();
    return value;
}

static PyObject *evaluate(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwing) {
    Region *region = innermost;
    if (!region) return run_outside(ts, frame, throwing);
    const bool rebuilt = arrives(frame, throwing);
    if (!throwing && !has_room(STACK_LEAST)) return refuse(ts, frame);
    if (!throwing && !rebuilt && !has_room(STACK_RESERVE)) return run_by_cpython(ts, frame);
    PyObject *answer = rebuilt ? NULL : replacement_result(region, ts, frame, throwing);
    if (answer) return answer;
    if (!rebuilt && !listens(region, ts, frame, throwing)) return cc_hook_run_unrecorded(ts, frame, throwing);
    const CcCode *code = cc_code_get(cc_frame_code(frame));
    if (code) return cc_run_frame(region->obs, &region->top, frame, code, throwing, rebuilt);
    if (!throwing) cc_raised_clear(); /* no memory for our tables, which CPython does not need */
    return _PyEval_EvalFrameDefault(ts, frame, throwing);
}

int cc_hook_run_noop(void) {
    PyObject *result = PyObject_CallNoArgs(noop);
    if (result) {
        Py_DECREF(result);
        return 0;
    }
    PyObject *type, *value, *traceback; /* the traceback must show the interrupted caller, not `noop` */
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value) PyException_SetTraceback(value, Py_None);
    Py_XDECREF(traceback);
    PyErr_Restore(type, value, NULL);
    return -1;
}

/* ------------------------------------------------------------------ installing */

/* The file that is mapped at an address, from /proc/self/maps; "" if unknown. */
static void module_of(uintptr_t address, char *name, size_t size) {
    name[0] = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t low, high;
        char *slash = strrchr(line, '/');
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &low, &high) != 2 || address < low || address >= high) continue;
        if (slash) snprintf(name, size, "%.*s", (int)strcspn(slash + 1, "\n"), slash + 1);
        break;
    }
    if (maps) fclose(maps);
}

static bool foreign(_PyFrameEvalFunction now) {
    return now != evaluate && now != _PyEval_EvalFrameDefault && now != displaced;
}

void cc_hook_set_guest(const char *module, CcHookIdle idle_now) {
    guest_module = module;
    guest_idle = idle_now;
}

/* Every call asks this, so the answer for the last foreign function is cached: finding its module reads a file. */
static bool is_guest(_PyFrameEvalFunction now) {
    static _PyFrameEvalFunction last;
    static bool last_is;
    char name[200];
    if (guest_idle == NULL || now == _PyEval_EvalFrameDefault || now == evaluate) return false;
    if (now == displaced) return true;
    if (now != last) {
        module_of((uintptr_t)now, name, sizeof name);
        last_is = strncmp(name, guest_module, strlen(guest_module)) == 0;
        last = now;
    }
    return last_is;
}

/* An installed but idle guest may be displaced while a region listens; it is restored afterwards. */
static bool displaceable(_PyFrameEvalFunction now) { return is_guest(now) && guest_idle(); }

bool cc_hook_occupied(void) {
    const _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    return foreign(now) && is_guest(now) && !guest_idle();
}

static void listen(Region *region) {
    n_listening++;
    if (n_cramped > 0) {
        region->obs->dead = true;
        return;
    }
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    if (displaceable(now)) displaced = now;
    if (foreign(now)) region->obs->dead = true; /* another hook has replaced ours: leave the frames to it */
    else swap_function(evaluate);
}

static void unlisten(void) {
    if (--n_listening == 0) withdraw();
}

static int raise_foreign_hook(_PyFrameEvalFunction now) {
    char name[200];
    module_of((uintptr_t)now, name, sizeof name);
    PyErr_Format(PyExc_RuntimeError,
                 "ccompile: another frame evaluation hook (PEP 523)%s%s is installed; remove it "
                 "before recording compiled functions",
                 name[0] ? " of " : "", name);
    return -1;
}

int cc_hook_arm(CcObserver *obs) {
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (interp != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_RuntimeError, "ccompile does not run in sub-interpreters");
        return -1;
    }
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (foreign(now) && !displaceable(now)) return raise_foreign_hook(now);
    Region *region = PyMem_Calloc(1, sizeof *region);
    if (!region) {
        PyErr_NoMemory();
        return -1;
    }
    region->obs = obs;
    region->outer = innermost;
    if (!innermost) region->granted = grant_for_stack();
    cc_frame_grant(PyThreadState_Get(), region->granted);
    innermost = region;
    region->next = all;
    all = region;
    n_armed++;
    listen(region);
    return 0;
}

void cc_hook_disarm(CcObserver *obs) {
    Region *region = innermost;
    if (!region || region->obs != obs) Py_FatalError("ccompile: cc_hook_disarm does not match cc_hook_arm");
    innermost = region->outer;
    Region **link = &all;
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    cc_frame_grant(PyThreadState_Get(), -region->granted);
    n_armed--;
    if (!region->paused) unlisten();
    PyMem_Free(region);
}

void cc_hook_forked(void) {
    all = innermost;
    n_armed = n_listening = 0;
    n_cramped = n_cramped_here;
    for (Region *region = innermost; region; region = region->outer) {
        region->next = region->outer;
        n_armed++;
        n_listening += !region->paused;
    }
    if (n_listening == 0) withdraw();
}

CcObserver *cc_hook_current(void) { return innermost ? innermost->obs : NULL; }

static Region *region_of(const CcObserver *obs) {
    Region *region = innermost;
    while (region && region->obs != obs) region = region->outer;
    return region;
}

bool cc_hook_pause(CcObserver *obs, bool paused) {
    Region *region = region_of(obs);
    if (!region) return false;
    bool before = region->paused;
    if (before == paused) return before;
    region->paused = paused;
    if (paused) unlisten();
    else listen(region);
    return before;
}

bool cc_hook_paused(const CcObserver *obs) {
    const Region *region = region_of(obs);
    return region && region->paused;
}

bool cc_hook_traced(void) { return cc_frame_traced(PyThreadState_Get(), NULL); }

bool cc_hook_profiled(void) {
    PyThreadState *ts = PyThreadState_Get();
    return cc_frame_traced(ts, NULL) && cc_frame_profiled(ts);
}

/* Greenlets move parts of the thread's C stack away, with the regions on it, and end in any order. Each thread has a
 * main one, which has no parent. */
static bool in_greenlet(void) {
    PyTypeObject *type = cc_known_type(CC_KNOWN_GREENLET);
    if (!type) return false;
    PyObject *now = PyObject_CallMethod((PyObject *)type, "getcurrent", NULL);
    PyObject *parent = now ? PyObject_GetAttrString(now, "parent") : NULL;
    const bool is = parent && parent != Py_None;
    if (!parent) cc_raised_clear();
    Py_XDECREF(now);
    Py_XDECREF(parent);
    return is;
}

const char *cc_hook_refusal(void) {
    return cc_frame_finalizing() ? "the interpreter shuts down" : in_greenlet() ? "inside a greenlet" : NULL;
}

int cc_hook_armed(void) { return n_armed; }

void cc_hook_levels(int *python, int *c) { cc_frame_levels(PyThreadState_Get(), python, c); }

/* ------------------------------------------------------------------ rebuilt frames */

PyObject *cc_hook_call_with_nones(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    int n_pos = co->co_argcount, n_kw = co->co_kwonlyargcount;
    PyObject **args = PyMem_Calloc((size_t)(n_pos + n_kw + 1), sizeof *args);
    PyObject *names = args ? PyTuple_New(n_kw) : NULL, *result = NULL;
    for (int i = 0; names && i < n_kw; i++)
        PyTuple_SET_ITEM(names, i, Py_NewRef(PyTuple_GET_ITEM(co->co_localsplusnames, n_pos + i)));
    if (names) {
        for (int i = 0; i < n_pos + n_kw; i++) args[i + 1] = Py_None;
        size_t nargsf = (size_t)n_pos | PY_VECTORCALL_ARGUMENTS_OFFSET;
        result = PyObject_Vectorcall((PyObject *)func, args + 1, nargsf, n_kw ? names : NULL);
    } else if (!args) {
        PyErr_NoMemory();
    }
    Py_XDECREF(names);
    PyMem_Free(args);
    return result;
}

PyObject *cc_act_call_rebuilt(PyFunctionObject *func) {
    PyCodeObject *co = (PyCodeObject *)func->func_code;
    const int unfit = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    Region *region = innermost;
    if (!region || (co->co_flags & unfit) || !(co->co_flags & CO_OPTIMIZED)) {
        PyErr_SetString(PyExc_SystemError, "ccompile: a frame of this function can't be rebuilt");
        return NULL;
    }
    bool paused = cc_hook_pause(region->obs, false);
    expect(func);
    PyObject *result = cc_hook_call_with_nones(func);
    stop_expecting(); /* in case the call failed before it created a frame */
    cc_hook_pause(region->obs, paused);
    return result;
}

/* ------------------------------------------------------------------ start-up */

static int make_noop(void) {
    if (noop) return 0;
    PyObject *globals = PyDict_New();
    if (globals && PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0)
        noop = PyRun_String("lambda: None", Py_eval_input, globals, globals);
    Py_XDECREF(globals);
    return noop ? 0 : -1;
}

int cc_py_init(void) {
    static bool done;
    if (done) return 0;
    if (PY_VERSION_HEX >> 16 != (Py_Version >> 16)) {
        PyErr_Format(PyExc_ImportError, "ccompile was built for CPython %d.%d and does not run on %s", PY_MAJOR_VERSION,
                     PY_MINOR_VERSION, Py_GetVersion());
        return -1;
    }
    if (cc_optab_init() < 0 || cc_decode_init() < 0 || make_noop() < 0) return -1;
    done = true;
    return 0;
}
