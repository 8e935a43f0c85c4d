/* Containers and strings built from the stack: displays, comprehensions, formatted text. */
#include "rec_events.h"

/* ------------------------------------------------------------------ containers that grow */

CcGo cc_display_update_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    /* the container is on the stack: this trace made it, or the same expression did before a break */
    PyObject *v = ev->in[ev->n - 1];
    if (cc_value_unknown(rec, v)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(v));
    const int keys = ev->arg == CC_INSN_SET_ADD || ev->arg == CC_INSN_MAP_ADD ? 1
                     : ev->arg == CC_INSN_SET_UPDATE                          ? 2
                                                                              : 0;
    if (keys > 0 && !cc_number_settle(rec, ev->in[1], keys)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "key");
    if (keys == 1 && !cc_distinct_members(rec, ev->in[0], ev->in[1]))
        return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "a tensor as a key");
    if (cc_value_source(rec, ev->in[0]) >= 0) /* the trace's effect takes v after this event has used an iterator up */
        return PyIter_Check(v) ? cc_rec_break(rec, act, CC_R_UNBUILDABLE, cc_type_name(v)) : CC_OK;
    if (ev->arg == CC_INSN_LIST_EXTEND || ev->arg == CC_INSN_SET_UPDATE || ev->arg == CC_INSN_DICT_UPDATE ||
        ev->arg == CC_INSN_DICT_MERGE) {
        const CcEvent one = {.kind = CC_EV_ITER, .in = &v, .n = 1};
        if (ev->arg != CC_INSN_SET_UPDATE) cc_sym_fill(rec, v);
        return cc_op_iter(rec, act, &one, ev->arg == CC_INSN_DICT_UPDATE || ev->arg == CC_INSN_DICT_MERGE);
    }
    return CC_OK;
}

CcGo cc_display_update_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0];
    const int source = cc_value_source(rec, o);
    if (ev->arg == CC_INSN_LIST_EXTEND) cc_value_pairs(rec, o, ev->in[ev->n - 1]);
    if (ev->arg == CC_INSN_SET_UPDATE) {
        cc_same_taken(rec, ev->in[1], false);
        if (!cc_distinct_members(rec, o, NULL)) return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, "set");
    }
    if (source < 0 || rec->raised) return CC_OK;
    /* a break has split this comprehension or display: its container came through a slot */
    cc_value_wrote(rec, o, CC_DIRTY_ALL);
    const char *method = ev->arg == CC_INSN_LIST_APPEND   ? "append"
                         : ev->arg == CC_INSN_SET_ADD     ? "add"
                         : ev->arg == CC_INSN_LIST_EXTEND ? "extend"
                                                          : "update";
    if (ev->arg == CC_INSN_MAP_ADD) {
        const CcCallSpec spec = {.form = CC_F_SETITEM, .in = ev->in, .n = 3, .name = "setitem"};
        return cc_node_effect(rec, act, &spec, NULL);
    }
    PyObject *descr = PyObject_GetAttrString((PyObject *)Py_TYPE(o), method);
    if (descr == NULL) {
        cc_raised_clear();
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
    }
    cc_vec_push(&rec->keep, descr);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = descr, .in = ev->in, .n = 2, .name = method};
    return cc_node_effect(rec, act, &spec, NULL);
}

/* ------------------------------------------------------------------ text */

CcGo cc_display_format_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->result == NULL) return CC_OK;
    if (!cc_op_symbolic(rec, ev)) {
        cc_attr_dunder(rec, ev->in[0], "__format__");
        return CC_OK;
    }
    if (Py_REFCNT(ev->result) != 1) return cc_rec_poison(rec, act, CC_R_DATA_SCALAR, "format");
    const CcCallSpec spec = {
        .form = CC_F_FORMAT, .arg = ev->arg, .in = ev->in, .n = ev->n > 1 && ev->in[1] ? 2 : 1, .name = "format"};
    return cc_node_add(rec, act, &spec, ev->result);
}

/* Formatting returns the same object if the text is wide enough, but the recorder needs a separate one. 3.13 formats
 * the text of f"{a!r:>8}" in a separate instruction; other versions format the number. */
static CcGo format_symbolic(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *text = ev->in[0];
    if (!PyUnicode_CheckExact(text) || ev->arg > 1) return CC_OK; /* repr and ascii make a new object */
    PyObject *made = PyObject_Format(text, ev->in[1]);
    if (made != NULL && Py_REFCNT(made) != 1) Py_SETREF(made, cc_obj_copy_text(made));
    ev->result = made;
    if (made != NULL) (void)cc_display_format_after(rec, act, ev);
    return CC_DONE;
}

CcGo cc_display_format_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    if (cc_tens_is(ev->in[0])) return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, "formatting a tensor");
    if (cc_op_symbolic(rec, ev)) return format_symbolic(rec, act, ev);
    if (cc_sym_is(rec, ev->in[0]) && cc_sym_format(rec, act, ev) == CC_DONE) return CC_DONE;
    if (cc_op_tensors(ev, 3)) return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, "formatting a tensor");
    return cc_op_plain(rec, act, ev, 4);
}

/* A display raises if a key can't be hashed: a tuple's hash depends on its items. */
static CcGo unhashable(CcRec *rec, CcAct *act, const CcEvent *ev) {
    for (int i = 0; i < ev->n; i += ev->arg == CC_INSN_BUILD_MAP ? 2 : 1)
        if (PyTuple_Check(ev->in[i]) && !cc_inside_guard(rec, ev->in[i], 4))
            return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, "key");
    return CC_OK;
}

/* An f-string's parts are texts. */
static CcGo joined(CcRec *rec, CcAct *act, const CcEvent *ev) {
    const CcCallSpec spec = {.form = CC_F_JOIN, .in = ev->in, .n = ev->n, .name = "join"};
    if (cc_op_symbolic(rec, ev))
        return Py_REFCNT(ev->result) == 1 ? cc_node_add(rec, act, &spec, ev->result)
                                          : cc_rec_poison(rec, act, CC_R_DATA_SCALAR, "str");
    bool symbols = false;
    for (int i = 0; i < ev->n; i++) symbols = symbols || cc_sym_is(rec, ev->in[i]);
    if (symbols && !cc_sym_text(rec, act, &spec, ev->result))
        for (int i = 0; i < ev->n; i++) cc_sym_settle(rec, ev->in[i], 3);
    return CC_OK;
}

CcGo cc_display_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->result == NULL) return unhashable(rec, act, ev);
    if (PyUnicode_Check(ev->result)) return joined(rec, act, ev);
    const bool hashes = ev->arg == CC_INSN_BUILD_MAP || PyAnySet_Check(ev->result);
    for (int i = 0; hashes && i < ev->n; i += ev->arg == CC_INSN_BUILD_MAP ? 2 : 1) {
        cc_sym_settle(rec, ev->in[i], 3);
        if (ev->n > 1) cc_same_met(rec, ev->in[i]);
    }
    const int step = ev->arg == CC_INSN_BUILD_MAP ? 2 : PyAnySet_Check(ev->result) ? 1 : 0;
    if (step > 0 && cc_number_in(rec, ev->in, ev->n, step)) /* keys that are equal in a replay would collapse */
        return cc_rec_poison(rec, act, CC_R_DATA_SCALAR, "key");
    cc_value_fresh(rec, ev->result);
    const bool keys = PyAnySet_Check(ev->result) || (ev->arg == CC_INSN_BUILD_MAP && ev->n > 2);
    if (keys && !cc_distinct_members(rec, ev->result, NULL)) return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, "set");
    return CC_OK;
}
