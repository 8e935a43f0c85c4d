/* ccompile._frametest: exposes the frame layer (csrc/py) to tests/test_frames.py. Links only base/ and py/; built for
 * tests, never shipped. A single observer with modes plays every role of a recorder. */
#include "../py/py.h"

/* what the observer does; `k` counts instructions or events of the target code */
typedef enum Mode {
    MODE_OBSERVE,        /* only observes */
    MODE_PASS,           /* CPython runs every frame */
    MODE_STEP_GIVE_UP,   /* performs k instructions unobserved, one by one, then hands over */
    MODE_STEP_OBSERVE,   /* the same, then observes */
    MODE_STEP_DEAD,      /* the same, then the observer is dead */
    MODE_STEP_REPUT,     /* the same, then removes all slot values, puts them back and continues observed */
    MODE_BREAK_ALL,      /* breaks at every event */
    MODE_BREAK_AT,       /* breaks at event k */
    MODE_GIVE_UP_BEFORE, /* gives up before event k */
    MODE_GIVE_UP_AFTER,  /* gives up after event k */
    MODE_DONE,           /* performs operators, attribute reads and calls itself */
    /* drops the frame after k instructions; its caller rebuilds it, and it continues there */
    MODE_REBUILD,
    MODE_REBUILD_CALLER, /* the same for two frames: the caller is rebuilt, too */
    MODE_RANDOM,         /* breaks (except at calls) or gives up at random events; k is the seed */
    MODE_COUNT,
} Mode;

typedef struct Saved { /* a frame as a snapshot stores it */
    PyFunctionObject *func;
    PyObject **slot;
    int n, pc, depth;
} Saved;

typedef struct Test {
    CcObserver obs; /* must come first */
    Mode mode;
    long k, count;
    PyCodeObject *target;
    bool fired;
    long before[CC_EV_COUNT], after[CC_EV_COUNT], target_after[CC_EV_COUNT], raised, enters, leaves[8], resumes,
        rewinds;
    Saved saved[2]; /* innermost first */
    int n_saved;
} Test;

static Test *last; /* the last run, with its counts */

/* ------------------------------------------------------------------ helpers */

static bool is_target(const Test *t, const CcAct *act) { return !t->target || act->co == t->target; }

/* Counts an instruction or event of the target; true at the k-th. */
static bool reached(Test *t, const CcAct *act) {
    if (t->fired || !is_target(t, act)) return false;
    t->fired = t->count++ >= t->k;
    return t->fired;
}

static int n_slots(const CcAct *act) { return act->code->n_locals + act->depth; }

static void save(Test *t, const CcAct *act) {
    Saved *s = &t->saved[t->n_saved++];
    *s = (Saved){
        .func = (PyFunctionObject *)Py_NewRef(act->func), .n = n_slots(act), .pc = act->pc, .depth = act->depth};
    s->slot = PyMem_Calloc((size_t)s->n + 1, sizeof *s->slot);
    for (int i = 0; i < s->n; i++) s->slot[i] = Py_XNewRef(cc_act_get(act, i));
}

static void restore(Test *t, CcAct *act) {
    Saved *s = &t->saved[--t->n_saved];
    int n_locals = act->code->n_locals;
    for (int i = 0; i < n_locals; i++) cc_act_put(act, i, s->slot[i]);
    cc_act_move(act, s->pc, s->depth);
    for (int i = n_locals; i < s->n; i++) cc_act_put(act, i, s->slot[i]);
    Py_DECREF(s->func);
    PyMem_Free(s->slot);
}

static void put_back_all(CcAct *act) {
    PyObject *kept[256];
    int n = CC_MIN(n_slots(act), CC_COUNT(kept)), depth = act->depth;
    if (n != n_slots(act)) return;
    for (int i = 0; i < n; i++) kept[i] = Py_XNewRef(cc_act_get(act, i));
    for (int i = 0; i < act->code->n_locals; i++) cc_act_put(act, i, NULL);
    cc_act_move(act, act->pc, 0);
    /* a slot above the depth may be put before the move */
    for (int i = act->code->n_locals; i < n; i++) cc_act_put(act, i, kept[i]);
    cc_act_move(act, act->pc, depth);
    for (int i = 0; i < act->code->n_locals; i++) cc_act_put(act, i, kept[i]);
}

static bool can_rebuild(const Test *t, const CcAct *act) {
    const CcAct *caller = act->prev;
    if (act->generator || !caller || !caller->event || caller->event->kind != CC_EV_CALL) return false;
    if (caller->event->n < 1 || caller->event->in[0] != (PyObject *)act->func) return false;
    if (caller->code->insn[caller->pc].op != CC_INSN_CALL) return false;
    if (t->mode == MODE_REBUILD) return true;
    const CcAct *outer = caller->prev;
    return !caller->generator && outer && outer->event && outer->event->kind == CC_EV_CALL && outer->event->n >= 1 &&
           outer->event->in[0] == (PyObject *)caller->func && outer->code->insn[outer->pc].op == CC_INSN_CALL;
}

/* ------------------------------------------------------------------ the observer */

static bool stepping(const Test *t) {
    return (t->mode >= MODE_STEP_GIVE_UP && t->mode <= MODE_STEP_REPUT) || t->mode == MODE_REBUILD ||
           t->mode == MODE_REBUILD_CALLER;
}

static CcGo rebuild(Test *t, CcAct *act) {
    if (!can_rebuild(t, act)) {
        t->fired = false; /* try again with a later frame of this code */
        return CC_PERFORM;
    }
    save(t, act);
    t->obs.unwinding = true;
    return CC_UNWIND;
}

/* The next instruction of a stepped frame. */
static CcGo step(Test *t, CcAct *act) {
    if (!is_target(t, act) || t->fired) return CC_OK;
    if (!reached(t, act)) return CC_PERFORM;
    switch (t->mode) {
    case MODE_STEP_GIVE_UP: return CC_GIVE_UP;
    case MODE_STEP_DEAD: t->obs.dead = true; return CC_OK;
    case MODE_STEP_REPUT: put_back_all(act); return CC_OK;
    case MODE_REBUILD:
    case MODE_REBUILD_CALLER: return rebuild(t, act);
    default: return CC_OK;
    }
}

static CcGo on_enter(CcObserver *obs, CcAct *act) {
    Test *t = (Test *)obs;
    t->enters++;
    if (t->mode == MODE_PASS) return CC_PASS;
    if (act->rebuilt) {
        restore(t, act);
        return t->n_saved ? CC_DESCEND : CC_PERFORM;
    }
    return stepping(t) ? step(t, act) : CC_OK;
}

static bool perform_event(const CcAct *act, CcEvent *ev) {
    if (act->code->insn[act->pc].op == CC_INSN_IMPORT_FROM) return false; /* does more than read an attribute */
    switch (ev->kind) {
    case CC_EV_BINOP:
        ev->result = cc_ex_binop((CcBinop)ev->arg, ev->flags & CC_EV_INPLACE, ev->in[0], ev->in[1]);
        return true;
    case CC_EV_ATTR: ev->result = PyObject_GetAttr(ev->in[0], ev->name); return true;
    case CC_EV_CALL:
        ev->result = PyObject_Vectorcall(ev->in[0], ev->in + 1,
                                         (size_t)(ev->n - 1 - (ev->name ? PyTuple_GET_SIZE(ev->name) : 0)), ev->name);
        return true;
    default: return false;
    }
}

static CcGo at_random(Test *t, const CcEvent *ev) {
    t->k = (long)((unsigned long)t->k * 6364136223846793005ul + 1442695040888963407ul);
    unsigned dice = (unsigned)((unsigned long)t->k >> 40) & 255;
    bool calls = ev->kind == CC_EV_CALL || ev->kind == CC_EV_CALL_EX;
    return dice < 2 ? CC_GIVE_UP : dice < 20 && !calls && !(ev->flags & CC_EV_INNER) ? CC_BREAK : CC_OK;
}

static CcGo on_before(CcObserver *obs, CcAct *act, CcEvent *ev) {
    Test *t = (Test *)obs;
    t->before[ev->kind]++;
    bool inner = ev->flags & CC_EV_INNER;
    switch (t->mode) {
    case MODE_BREAK_ALL: return inner || !is_target(t, act) ? CC_OK : CC_BREAK;
    case MODE_BREAK_AT: return !inner && reached(t, act) ? CC_BREAK : CC_OK;
    case MODE_GIVE_UP_BEFORE: return reached(t, act) ? CC_GIVE_UP : CC_OK;
    case MODE_RANDOM: return at_random(t, ev);
    case MODE_DONE: return perform_event(act, ev) ? CC_DONE : CC_OK;
    default: return CC_OK;
    }
}

static CcGo on_after(CcObserver *obs, CcAct *act, CcEvent *ev) {
    Test *t = (Test *)obs;
    t->after[ev->kind]++;
    if (is_target(t, act)) t->target_after[ev->kind]++;
    if (!ev->result && PyErr_Occurred()) t->raised++;
    if (t->mode == MODE_RANDOM) return at_random(t, ev) == CC_GIVE_UP ? CC_GIVE_UP : CC_OK;
    return t->mode == MODE_GIVE_UP_AFTER && reached(t, act) ? CC_GIVE_UP : CC_OK;
}

static CcGo on_resume(CcObserver *obs, CcAct *act) {
    Test *t = (Test *)obs;
    t->resumes++;
    return stepping(t) ? step(t, act) : CC_OK;
}

static void on_leave(CcObserver *obs, CcAct *act, int how, PyObject *value) {
    Test *t = (Test *)obs;
    (void)act;
    (void)value;
    t->leaves[how]++;
}

static CcGo on_rewind(CcObserver *obs, CcAct *act) {
    Test *t = (Test *)obs;
    t->rewinds++;
    if (t->mode == MODE_REBUILD_CALLER && t->n_saved == 1) {
        save(t, act);
        return CC_UNWIND;
    }
    obs->unwinding = false;
    return CC_DESCEND;
}

static PyObject *on_descend(CcObserver *obs, CcAct *act) {
    Test *t = (Test *)obs;
    (void)act;
    return cc_act_call_rebuilt(t->saved[t->n_saved - 1].func);
}

static Test new_test(Mode mode, long k, PyCodeObject *target) {
    return (Test){
        .obs = {.enter = on_enter,
                .before = on_before,
                .after = on_after,
                .resume = on_resume,
                .leave = on_leave,
                .rewind = on_rewind,
                .descend = on_descend},
        .mode = mode,
        .k = k,
        .target = target,
    };
}

/* ------------------------------------------------------------------ functions for Python */

static PyObject *py_run(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *func, *call_args, *target = Py_None, *kwargs = NULL;
    int mode = 0;
    long k = 0;
    if (!PyArg_ParseTuple(args, "OO!|ilOO!", &func, &PyTuple_Type, &call_args, &mode, &k, &target, &PyDict_Type,
                          &kwargs))
        return NULL;
    Test t = new_test((Mode)mode, k, target == Py_None ? NULL : (PyCodeObject *)target);
    if (cc_hook_arm(&t.obs) < 0) return NULL;
    PyObject *result = PyObject_Call(func, call_args, kwargs);
    cc_hook_disarm(&t.obs);
    if (last) *last = t;
    return result;
}

/* call(func, args): calls func from C code, as run() does, without the hook. */
static PyObject *py_call(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *func, *call_args;
    if (!PyArg_ParseTuple(args, "OO!", &func, &PyTuple_Type, &call_args)) return NULL;
    return PyObject_Call(func, call_args, NULL);
}

static PyObject *counts(const long *at) {
    static const char *const names[] = {
#define CC_EV(id, doc) #id,
#include "../py/events.def"
#undef CC_EV
    };
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < CC_EV_COUNT; i++) {
        PyObject *n = PyLong_FromLong(at[i]);
        if (!n || PyDict_SetItemString(dict, names[i], n) < 0) Py_CLEAR(dict);
        Py_XDECREF(n);
    }
    return dict;
}

static PyObject *py_stats(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    const Test *t = last;
    return Py_BuildValue("{s:N,s:N,s:N,s:l,s:l,s:(lllll),s:l,s:l,s:l,s:O,s:i}", "before", counts(t->before), "after",
                         counts(t->after), "target", counts(t->target_after), "raised", t->raised, "enters", t->enters,
                         "leaves", t->leaves[0], t->leaves[1], t->leaves[2], t->leaves[3], t->leaves[4], "resumes",
                         t->resumes, "rewinds", t->rewinds, "count", t->count, "fired", t->fired ? Py_True : Py_False,
                         "saved", t->n_saved);
}

static PyObject *py_decode(PyObject *module, PyObject *co) {
    (void)module;
    if (!PyCode_Check(co)) return PyErr_Format(PyExc_TypeError, "code object expected");
    const CcCode *code = cc_code_get((PyCodeObject *)co);
    PyObject *list = code ? PyList_New(0) : NULL;
    for (int i = 0; list && i < code->n; i++) {
        const CcInsn *in = &code->insn[i];
        PyObject *row =
            Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "op", cc_op_name((CcOp)in->op), "flags",
                          in->flags, "arg", in->arg, "aux", in->aux, "target", in->target, "at", in->at, "real",
                          in->real, "next", in->next, "depth", in->depth, "line", cc_code_line(code, i));
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* For each instruction, the list of live slots. */
static PyObject *py_live(PyObject *module, PyObject *co) {
    (void)module;
    const CcCode *code = PyCode_Check(co) ? cc_code_get((PyCodeObject *)co) : NULL;
    PyObject *list = code ? PyList_New(0) : NULL;
    for (int pc = 0; list && pc < code->n; pc++) {
        PyObject *row = PyList_New(0);
        for (int i = 0; row && i < code->n_locals; i++) {
            PyObject *slot = PyLong_FromLong(i);
            if (cc_code_live(code, pc, i) && PyList_Append(row, slot) < 0) Py_CLEAR(row);
            Py_XDECREF(slot);
        }
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *py_armed(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return Py_BuildValue("(iO)", cc_hook_armed(), cc_hook_current() ? Py_True : Py_False);
}

static PyObject *py_traced(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(cc_hook_traced());
}

static PyObject *foreign_hook(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwing) {
    return _PyEval_EvalFrameDefault(ts, frame, throwing);
}

/* Installs or removes a foreign PEP 523 hook. */
static PyObject *py_foreign(PyObject *module, PyObject *on) {
    (void)module;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(),
                                         PyObject_IsTrue(on) ? foreign_hook : _PyEval_EvalFrameDefault);
    Py_RETURN_NONE;
}

/* Whether CPython's own evaluation function is installed. */
static PyObject *py_hookless(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault);
}

/* Remaining recursion levels: (Python, C). */
static PyObject *py_levels(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    int python, c;
    cc_hook_levels(&python, &c);
    return Py_BuildValue("(ii)", python, c);
}

static PyObject *py_objects(PyObject *module, PyObject *o) {
    (void)module;
    static const uint64_t *watched; /* stays watched until the next call */
    PyObject *dict = cc_obj_dict(o), *found = NULL, *name = PyUnicode_InternFromString("__init__");
    const uint64_t *version = dict ? cc_watch_begin(dict) : NULL;
    if (watched) cc_watch_end(watched);
    watched = version;
    if (name) found = cc_type_lookup(Py_TYPE(o), name);
    Py_XDECREF(name);
    return Py_BuildValue("(OKIO)", dict ? dict : Py_None, (unsigned long long)(version ? *version + 1 : 0),
                         cc_type_version(Py_TYPE(o)), found ? found : Py_None);
}

static PyMethodDef methods[] = {
    {"run", py_run, METH_VARARGS,
     "run(func, args, mode=0, k=0, target=None, kwargs={}): calls func with the hook armed"},
    {"call", py_call, METH_VARARGS, "call(func, args): without the hook"},
    {"stats", py_stats, METH_NOARGS, "counts of the last run"},
    {"decode", py_decode, METH_O, "instructions of a code object"},
    {"live", py_live, METH_O, "live slots before each instruction"},
    {"armed", py_armed, METH_NOARGS, "(armed regions, whether this thread has an observer)"},
    {"traced", py_traced, METH_NOARGS, "cc_hook_traced"},
    {"foreign", py_foreign, METH_O, "installs (or removes) a foreign hook"},
    {"hookless", py_hookless, METH_NOARGS, "whether CPython's own evaluation function is installed"},
    {"levels", py_levels, METH_NOARGS, "recursion levels left"},
    {"objects", py_objects, METH_O, "(dict, dict version, type version, type's __init__)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "ccompile._frametest", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__frametest(void);
PyMODINIT_FUNC PyInit__frametest(void) {
    static Test storage;
    last = &storage;
    if (cc_py_init() < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    static const char *const modes[MODE_COUNT] = {
        "OBSERVE",  "PASS",           "STEP_GIVE_UP",  "STEP_OBSERVE", "STEP_DEAD", "STEP_REPUT",     "BREAK_ALL",
        "BREAK_AT", "GIVE_UP_BEFORE", "GIVE_UP_AFTER", "DONE",         "REBUILD",   "REBUILD_CALLER", "RANDOM"};
    for (int i = 0; module && i < MODE_COUNT; i++) {
        if (PyModule_AddIntConstant(module, modes[i], i) < 0) Py_CLEAR(module);
    }
    return module;
}
