/* The evaluator: runs one real frame, instruction by instruction. The frame is linked as the thread's current frame and
 * stores all values. The observer is asked before and told after each step. A frame ends in one of four ways: it
 * returns a value, an exception leaves it, it is handed to CPython's evaluator, or it is dropped so that the act below
 * continues (CC_UNWIND).
 *
 *   drive(go) --> steps() --> exec[op]() --> NEXT ... --> BREAK, REWIND --> handle_end() --> drive(go)
 *                                        RAISED --> enter_handler(), or the frame ends */
#include "py_int.h"

/* how a frame ends */
typedef enum Out {
    OUT_VALUE,
    OUT_RAISE,
    OUT_HAND,
    OUT_THROW,
    OUT_UNWIND,
    OUT_NOT, /* it does not end yet */
} Out;

static const CcExec exec[CC_INSN_COUNT] = {
#define CC_INSN(id, ...) [CC_INSN_##id] = cc_ex_##id,
#include "insn.def"
#undef CC_INSN
};

static inline const CcInsn *insn(const CcRun *r) { return &r->act.code->insn[r->act.pc]; }

/* ------------------------------------------------------------------ slots */

PyObject *cc_act_get(const CcAct *act, int slot) { return cc_local((const CcRun *)act, slot); }

bool cc_act_stored(const CcAct *act, int slot) {
    return slot >= 64 * CC_COUNT(act->stored) || (act->stored[slot >> 6] >> (slot & 63) & 1);
}

PyObject *cc_act_generator(const CcAct *act) {
    return cc_frame_in_generator(act->frame) ? cc_frame_generator(act->frame) : NULL;
}

bool cc_act_collecting(const CcAct *act) { return cc_frame_collecting(act->ts); }

void cc_act_clear_stored(CcAct *act) { memset(act->stored, 0, sizeof act->stored); }

int cc_act_depth_after_call(const CcAct *act) {
    const int after = act->pc + 1 < act->code->n ? act->code->insn[act->pc + 1].depth : -1;
    return after > 0 ? after - 1 : 0;
}

int cc_act_dead_refs(const CcAct *act, bool waits, PyObject *o) {
    const int n_locals = act->code->n_locals;
    int n = 0;
    for (int slot = 0; slot < n_locals; slot++)
        n += cc_act_get(act, slot) == o && !cc_code_live(act->code, act->pc, slot);
    for (int i = waits ? cc_act_depth_after_call(act) : act->depth; i < act->depth; i++)
        n += cc_act_get(act, n_locals + i) == o;
    return n;
}

static void put_on_stack(CcRun *r, PyObject **at, PyObject *value) {
    PyObject *old = cc_slot_get(*at);
    *at = cc_slot_of_stack(value);
    cc_release(r, old);
}

void cc_act_put(CcAct *act, int slot, PyObject *value) {
    CcRun *r = (CcRun *)act;
    if (slot < act->code->n_locals) cc_set_local(r, slot, value);
    else put_on_stack(r, &r->slot[slot], value);
}

void cc_act_move(CcAct *act, int pc, int depth) {
    CcRun *r = (CcRun *)act;
    int top = act->co->co_stacksize;
    act->pc = pc;
    act->depth = depth;
    for (int i = depth; i < top; i++) {
        PyObject *old = cc_slot_get(r->stack[i]);
        r->stack[i] = CC_SLOT_NULL;
        Py_XDECREF(old);
    }
}

/* cc_act_put and cc_act_move may touch the whole stack, so slots above the top must be NULL whenever they may be
 * called. */
static void clear_above(CcRun *r) {
    for (int i = r->act.depth; i < r->act.co->co_stacksize; i++) r->stack[i] = CC_SLOT_NULL;
}

/* ------------------------------------------------------------------ events */

/* The result of cc_act_call_rebuilt replaces the instruction's call, not the steps that lead up to it. */
static bool takes_call_result(const CcRun *r, const CcEvent *ev) {
    return r->has_call_result && ev->kind != CC_EV_WITH && ev->kind != CC_EV_RAISE && ev->kind != CC_EV_SPECIAL &&
           ev->kind != CC_EV_TUPLE;
}

CcDo cc_run_before(CcRun *r, CcEvent *ev) {
    CcAct *act = &r->act;
    if (takes_call_result(r, ev)) {
        r->has_call_result = false;
        ev->result = r->call_result;
        r->call_result = NULL;
        return cc_run_after(r, ev, ev->result == NULL);
    }
    if (!act->observed || act->obs->dead) return CC_DO_PERFORM;
    act->event = ev;
    CcGo go = act->obs->before(act->obs, act, ev);
    if (go == CC_OK) return CC_DO_PERFORM;
    act->event = NULL;
    if (go == CC_DONE) return ev->result || !PyErr_Occurred() ? CC_DO_NEXT : CC_DO_RAISED;
    if (ev->flags & CC_EV_INNER) { /* the instruction has begun, so the rest of it is performed unobserved */
        act->observed = false;
        r->stop = true;
        return CC_DO_PERFORM;
    }
    return go == CC_BREAK ? CC_DO_BREAK : CC_DO_HAND;
}

void cc_run_unobserved_call(CcRun *r, PyObject *callable) {
    CcObserver *obs = r->act.obs;
    if (!r->act.observed && !obs->dead && obs->listens && obs->listens(obs, callable)) cc_hook_pause(obs, false);
}

CcDo cc_run_after(CcRun *r, CcEvent *ev, bool raised) {
    CcAct *act = &r->act;
    if (act->obs->unwinding) {
        Py_CLEAR(ev->result);
        cc_raised_clear();
        act->event = NULL;
        return CC_DO_REWIND;
    }
    if (act->observed && !act->obs->dead && act->obs->after(act->obs, act, ev) == CC_GIVE_UP) {
        act->observed = false;
        r->stop = true;
    }
    act->event = NULL;
    return raised ? CC_DO_RAISED : CC_DO_NEXT;
}

void cc_run_report_made(CcRun *r, CcEvent *ev) {
    if (r->act.observed) (void)cc_run_after(r, ev, false);
}

static void report_leave(CcRun *r, int how, PyObject *value) {
    CcAct *act = &r->act;
    if (r->entered) act->obs->leave(act->obs, act, how, value);
    r->entered = false;
    *r->top = act->prev;
}

/* ------------------------------------------------------------------ performing */

/* After an instruction that may have run other code: handles what the eval breaker requests where CPython does so, and
 * hands the frame over if a tracer was switched on. */
static CcDo poll_breaker(CcRun *r, const CcInsn *in) {
    if ((in->flags & CC_IF_POLL) && cc_frame_poll(r->act.ts) < 0) return CC_DO_RAISED;
    if (cc_frame_traced(r->act.ts, r->act.co)) r->stop = true;
    return CC_DO_NEXT;
}

static inline CcDo perform(CcRun *r) {
    const CcInsn *in = insn(r);
    CC_ASSERT(in->depth == r->act.depth);
    r->next = r->act.pc + 1;
    cc_frame_set_position(r->act.frame, in->real, r->act.depth);
    CcDo done = exec[in->op](r, in);
    if (done != CC_DO_NEXT) return done;
    if (in->flags & (CC_IF_RUNS | CC_IF_POLL)) done = poll_breaker(r, in);
    if (done == CC_DO_NEXT) r->act.pc = r->next;
    return done;
}

static CcDo steps(CcRun *r) {
    const CcObserver *obs = r->act.obs;
    CcDo done;
    do {
        if (r->stop || obs->dead) return CC_DO_HAND;
        done = perform(r);
    } while (done == CC_DO_NEXT);
    return done;
}

/* Performs one instruction unobserved; CPython runs the frames that it enters, unknown to the observer unless it listens
 * to the call. */
static CcDo perform_alone(CcRun *r) {
    CcObserver *obs = r->act.obs;
    r->act.observed = false;
    bool paused = cc_hook_pause(obs, true);
    CcDo done = perform(r);
    cc_hook_pause(obs, paused);
    return done;
}

/* Performs the call at pc with the result of a callee whose frame the observer rebuilds. */
static CcDo perform_rebuilt(CcRun *r) {
    CcObserver *obs = r->act.obs;
    r->act.observed = false;
    cc_frame_set_position(r->act.frame, insn(r)->real, r->act.depth);
    PyObject *result = obs->descend(obs, &r->act);
    if (obs->unwinding) {
        Py_XDECREF(result);
        cc_raised_clear();
        return CC_DO_REWIND;
    }
    r->call_result = result;
    r->has_call_result = true;
    CcDo done = perform_alone(r);
    r->has_call_result = false;
    Py_CLEAR(r->call_result);
    return done;
}

/* ------------------------------------------------------------------ exceptions */

static void add_traceback(CcRun *r) {
    if (cc_obj_is_ours(r->act.co)) return;
    PyFrameObject *frame = PyThreadState_GetFrame(r->act.ts);
    if (frame) PyTraceBack_Here(frame);
    Py_XDECREF(frame);
}

bool cc_exception_holds(PyObject *exception) {
    const PyStopIterationObject *e = (PyStopIterationObject *)exception;
    if (!Py_IS_TYPE(exception, (PyTypeObject *)PyExc_StopIteration) || e->value != Py_None || e->dict != NULL ||
        e->context != NULL || e->cause != NULL || e->notes != NULL || PyTuple_GET_SIZE(e->args) > 0)
        return true;
    PyObject *tb = e->traceback;
    for (; tb != NULL && tb != Py_None; tb = (PyObject *)((PyTracebackObject *)tb)->tb_next)
        if (Py_REFCNT(((PyTracebackObject *)tb)->tb_frame) == 1) return true;
    return false;
}

/* Takes the exception out of the error indicator, normalised and with its traceback. */
static PyObject *take_exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyException_SetTraceback(value, traceback ? traceback : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Jumps to the frame's handler; false if it has none (the exception stays set). As label exception_unwind in CPython's
 * evaluator. */
static bool enter_handler(CcRun *r, CcDo done) {
    int unit = r->raise_unit >= 0 ? r->raise_unit : insn(r)->real;
    if (done == CC_DO_RAISED) add_traceback(r);
    if (!PyErr_Occurred()) PyErr_NoMemory(); /* no memory for the exception, or for its traceback's frame object */
    const CcHandler *handler = cc_extable_find(r->act.code, r->act.pc);
    if (!handler) return false;
    r->raise_unit = -1;
    cc_drop(r, r->act.depth - handler->level);
    if (handler->lasti) {
        PyObject *lasti = PyLong_FromLong(unit);
        cc_push(r, lasti ? lasti : Py_NewRef(Py_None));
    }
    cc_push(r, take_exception());
    r->act.pc = handler->target;
    return true;
}

/* ------------------------------------------------------------------ the observer's answers */

static CcGo call_observer(CcRun *r, CcGo (*callback)(CcObserver *, CcAct *)) {
    clear_above(r);
    return callback(r->act.obs, &r->act);
}

/* Handles the end of a run of steps, or of an instruction that was performed alone. OUT_NOT: the frame continues with
 * *go. */
static Out handle_end(CcRun *r, CcDo done, bool alone, CcGo *go) {
    CcObserver *obs = r->act.obs;
    switch (done) {
    case CC_DO_LEAVE: return OUT_VALUE;
    case CC_DO_HAND: return OUT_HAND;
    case CC_DO_BREAK: *go = CC_PERFORM; return OUT_NOT;
    case CC_DO_REWIND: *go = call_observer(r, obs->rewind); return OUT_NOT;
    case CC_DO_RAISED:
    case CC_DO_RERAISED:
        if (cc_frame_traced(r->act.ts, r->act.co)) return OUT_THROW;
        if (!enter_handler(r, done)) return OUT_RAISE;
        break;
    default: break;
    }
    if (r->stop || obs->dead) return OUT_HAND;
    *go = alone ? call_observer(r, obs->resume) : CC_OK;
    return OUT_NOT;
}

/* Completes the current instruction before a hand-over if it is the second half of a split one, where CPython can't
 * start. */
static Out finish_inner(CcRun *r) {
    if (!(insn(r)->op == CC_INSN_TO_BOOL && insn(r)->flags & CC_IF_INNER)) return OUT_HAND;
    const CcDo done = perform_alone(r);
    if (done == CC_DO_NEXT) return OUT_HAND;
    if (cc_frame_traced(r->act.ts, r->act.co)) return OUT_THROW;
    return enter_handler(r, done) ? OUT_HAND : OUT_RAISE;
}

/* Runs the frame from the observer's answer `go` to its end. */
static Out drive(CcRun *r, CcGo go) {
    Out out = OUT_NOT;
    while (out == OUT_NOT) {
        CcDo done;
        bool alone = true;
        switch (go) {
        case CC_PERFORM: done = perform_alone(r); break;
        case CC_DESCEND: done = perform_rebuilt(r); break;
        case CC_RETURN:
            r->value = r->act.retval;
            r->act.retval = NULL;
            return OUT_VALUE;
        case CC_UNWIND: return OUT_UNWIND;
        case CC_GIVE_UP: return finish_inner(r);
        default:
            alone = false;
            r->act.observed = true;
            done = steps(r);
            break;
        }
        out = handle_end(r, done, alone, &go);
    }
    return out == OUT_HAND ? finish_inner(r) : out;
}

/* ------------------------------------------------------------------ the end of a frame */

static void detach(CcRun *r) {
    cc_frame_unlink(r->act.ts, r->act.frame);
    cc_frame_leave_level(r->act.ts);
}

/* The same for a frame that CPython continues. */
static void give_back(CcRun *r) {
    cc_frame_return(r->act.frame, r->act.depth, cc_code_offsets(r->act.code, r->act.pc));
    detach(r);
}

/* Clears the locals as CPython does at the end of a frame, with the observer listening. */
static void clear_locals(CcRun *r) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const int n = r->act.code->n_locals;
    for (int i = 0; i < n; i++) cc_set_local(r, CC_LAST_LOCAL_FIRST ? n - 1 - i : i, NULL);
    PyErr_Restore(type, value, traceback);
}

/* Ends the frame; value NULL: an exception leaves it (error set). */
static PyObject *finish(CcRun *r, int how, PyObject *value) {
    if (how == CC_LEAVE_UNWIND && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "ccompile: a frame was dropped so that its caller can continue");
    cc_drop(r, r->act.depth);
    cc_frame_set_position(r->act.frame, r->raise_unit >= 0 ? r->raise_unit : insn(r)->real, 0);
    report_leave(r, how, value);
    detach(r);
    if (r->act.observed && !r->act.generator && cc_frame_owns_locals(r->act.frame)) clear_locals(r);
    cc_frame_finish(r->act.ts, r->act.frame);
    return value;
}

static PyObject *hand_over(CcRun *r) {
    const CcInsn *in = insn(r);
    const bool yields = in->op == CC_INSN_SUSPEND;
    report_leave(r, yields ? CC_LEAVE_YIELD : CC_LEAVE_HANDOVER, yields && r->act.depth > 0 ? cc_top(r, 1) : NULL);
    give_back(r);
    PyObject *value = cc_frame_resume(r->act.ts, r->act.frame, in->at, r->act.depth);
    if (!value) cc_obj_hide_frame();
    return value;
}

/* An exception was raised while a tracer is active: has CPython raise it, so that the tracer sees it. For a call,
 * CPython repeats the instruction with a callable that raises the exception (exact); elsewhere its evaluator is entered
 * with the exception set. */
static PyObject *hand_exception(CcRun *r) {
    const CcInsn *in = insn(r);
    PyThreadState *ts = r->act.ts;
    void *frame = r->act.frame;
    if (in->op == CC_INSN_CALL && r->act.depth == in->depth) {
        PyObject **callee = cc_peek(r, in->arg + 2 + ((in->flags & CC_IF_KW) != 0));
        if (!cc_optab.null_last && !*callee) callee++;
        Py_SETREF(*callee, cc_ex_raiser());
        return hand_over(r);
    }
    report_leave(r, CC_LEAVE_RAISE, NULL);
    cc_frame_set_position(frame, in->real, r->act.depth);
    give_back(r);
    return cc_frame_throw(ts, frame);
}

static PyObject *end(CcRun *r, Out out) {
    PyObject *value = r->value;
    switch (out) {
    case OUT_VALUE: return finish(r, CC_LEAVE_RETURN, value);
    case OUT_RAISE: return finish(r, CC_LEAVE_RAISE, NULL);
    case OUT_UNWIND: return finish(r, CC_LEAVE_UNWIND, NULL);
    case OUT_THROW: return hand_exception(r);
    default: return hand_over(r);
    }
}

/* The first instruction; -1: CPython runs the frame. If an exception is thrown into the frame, we run it only if its
 * handler begins with an instruction that we can perform. */
static int first_pc(const CcCode *code, int unit, bool throwing) {
    int pc = cc_code_at(code, unit);
    if (pc < 0 || !throwing) return pc;
    if (pc == 0 || code->insn[pc - 1].op != CC_INSN_SUSPEND) return -1;
    const CcHandler *handler = cc_extable_find(code, pc - 1);
    return handler && !(code->insn[handler->target].flags & CC_IF_HAND) ? pc - 1 : -1;
}

/* Lets CPython run the frame unobserved. */
static PyObject *run_unobserved(CcRun *r, bool throwing) {
    if (throwing) return hand_over(r); /* enter_handler() has already moved it to its handler */
    *r->top = r->act.prev;
    give_back(r);
    return cc_hook_run_unrecorded(r->act.ts, r->act.frame, 0);
}

static PyObject *run_all_unobserved(CcRun *r, bool throwing) {
    CcObserver *obs = r->act.obs;
    const bool paused = cc_hook_pause(obs, true);
    PyObject *value = run_unobserved(r, throwing);
    cc_hook_pause(obs, paused);
    return value;
}

PyObject *cc_run_frame(CcObserver *obs, CcAct **top, void *frame, const CcCode *code, bool throwing, bool rebuilt) {
    PyThreadState *ts = PyThreadState_Get();
    PyCodeObject *co = code->co;
    int unit = cc_frame_next_unit(frame), pc = first_pc(code, unit, throwing);
    if (pc < 0 || !cc_frame_enter_level(ts)) return _PyEval_EvalFrameDefault(ts, frame, throwing);
    cc_frame_take(frame);
    PyObject **slot = cc_frame_slots(frame);
    CcRun r = {
        .act = {.prev = *top,
                .obs = obs,
                .ts = ts,
                .frame = frame,
                .co = co,
                .func = cc_frame_func(frame),
                .code = code,
                .pc = pc,
                .depth = cc_frame_depth(frame),
                .started = unit == 0,
                .rebuilt = rebuilt,
                .generator = cc_frame_in_generator(frame) || (co->co_flags & CO_GENERATOR)},
        .top = top,
        .slot = slot,
        .stack = slot + co->co_nlocalsplus,
        .names = co->co_names,
        .consts = co->co_consts,
        .globals = cc_frame_globals(frame),
        .builtins = cc_frame_builtins(frame),
        .entered = true,
        .raise_unit = -1,
    };
    cc_frame_link(ts, frame);
    *top = &r.act;
    if (throwing) {
        r.raise_unit = cc_frame_lasti(frame);
        r.act.thrown = enter_handler(&r, CC_DO_RAISED);
    }
    CcGo go = call_observer(&r, obs->enter);
    if (go != CC_PASS && go != CC_PASS_ALL) return end(&r, drive(&r, go));
    r.entered = false;
    return go == CC_PASS ? run_unobserved(&r, throwing) : run_all_unobserved(&r, throwing);
}
