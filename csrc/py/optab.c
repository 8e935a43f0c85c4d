/* Opcode tables of the running interpreter. At start-up the rows of opcodes.def are matched by name against the opcode
 * module, so that no opcode number appears in the source. Opcodes without a row stay CC_INSN_HAND. */
#include "py_int.h"

CcOpTab cc_optab;

static const uint8_t insn_flags[CC_INSN_COUNT] = {
#define CC_INSN(id, flags, doc) [CC_INSN_##id] = (flags),
#include "insn.def"
#undef CC_INSN
};

static const char *const insn_names[CC_INSN_COUNT] = {
#define CC_INSN(id, ...) [CC_INSN_##id] = #id,
#include "insn.def"
#undef CC_INSN
};

static const struct Row {
    const char *name;
    uint8_t op, split;
    int k;
    const char *since, *until;
} rows[] = {
#define CC_OPCODE(name, insn, split, k, since, until) {#name, CC_INSN_##insn, CC_SPLIT_##split, k, since, until},
#include "opcodes.def"
#undef CC_OPCODE
};

uint8_t cc_optab_flags(CcOp op) { return insn_flags[op]; }

const char *cc_op_name(CcOp op) { return op < CC_INSN_COUNT ? insn_names[op] : "?"; }

/* An opcode's number; -1: this interpreter does not have it. */
static int number(PyObject *opmap, const char *name) {
    PyObject *n = cc_obj_item(opmap, name);
    long value = n ? PyLong_AsLong(n) : -1;
    return value >= 0 && value < 256 ? (int)value : -1;
}

static void match_rows(PyObject *opmap) {
    for (int i = 0; i < CC_COUNT(rows); i++) {
        const struct Row *row = &rows[i];
        int op = number(opmap, row->name);
        if (op < 0 || (row->since && number(opmap, row->since) < 0) || (row->until && number(opmap, row->until) >= 0))
            continue;
        cc_optab.row[op] = (CcOpRow){.op = row->op, .split = row->split, .k = row->k};
    }
}

/* Inline cache entries: a list by number (3.11, 3.12) or a mapping by name (from 3.13 on). */
static int read_caches(PyObject *module, PyObject *opmap) {
    PyObject *entries = PyObject_GetAttrString(module, "_inline_cache_entries");
    if (!entries) return -1;
    Py_ssize_t pos = 0;
    PyObject *name, *op;
    int status = 0;
    while (status == 0 && PyDict_Next(opmap, &pos, &name, &op)) {
        long i = PyLong_AsLong(op);
        if (i < 0 || i > 255) continue; /* the compiler's pseudo opcodes */
        PyObject *count = NULL;
        if (PyList_Check(entries)) {
            count = i < PyList_GET_SIZE(entries) ? Py_NewRef(PyList_GET_ITEM(entries, i)) : NULL;
        } else {
            count = PyObject_GetItem(entries, name);
            if (!count && PyErr_ExceptionMatches(PyExc_KeyError)) cc_raised_clear();
        }
        if (count) cc_optab.row[i].caches = (uint8_t)PyLong_AsLong(count);
        Py_XDECREF(count);
        if (PyErr_Occurred()) status = -1;
    }
    Py_DECREF(entries);
    return status;
}

/* Index of a string in a list attribute of the module; -1 if either is absent. */
static int position(PyObject *module, const char *list, const char *what) {
    PyObject *names = PyObject_GetAttrString(module, list);
    PyObject *key = PyUnicode_FromString(what);
    Py_ssize_t at = names && key ? PySequence_Index(names, key) : -1;
    cc_raised_clear();
    Py_XDECREF(key);
    Py_XDECREF(names);
    return (int)at;
}

static bool is_binop(PyObject *pair, const char *name) {
    PyObject *text = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) ? PyTuple_GET_ITEM(pair, 0) : NULL;
    return text && PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, name) == 0;
}

/* CcBinop relies on the order of BINARY_OP's arguments, so check it. 3.14 appends subscription. */
static int check_binops(PyObject *module) {
    static const char *const order[CC_NB_COUNT] = {
        "NB_ADD", "NB_AND",   "NB_FLOOR_DIVIDE", "NB_LSHIFT",   "NB_MATRIX_MULTIPLY", "NB_MULTIPLY", "NB_REMAINDER",
        "NB_OR",  "NB_POWER", "NB_RSHIFT",       "NB_SUBTRACT", "NB_TRUE_DIVIDE",     "NB_XOR"};
    PyObject *ops = PyObject_GetAttrString(module, "_nb_ops");
    if (!ops) return -1;
    bool good = PyList_Check(ops) && PyList_GET_SIZE(ops) >= 2 * CC_NB_COUNT;
    for (int i = 0; good && i < CC_NB_COUNT; i++) good = is_binop(PyList_GET_ITEM(ops, i), order[i]);
    if (good && PyList_GET_SIZE(ops) > CC_NB_SUBSCR) good = is_binop(PyList_GET_ITEM(ops, CC_NB_SUBSCR), "NB_SUBSCR");
    Py_DECREF(ops);
    if (!good)
        PyErr_SetString(PyExc_ImportError,
                        "ccompile: this interpreter numbers BINARY_OP's arguments in an unknown way");
    return good ? 0 : -1;
}

/* What LOAD_COMMON_CONSTANT pushes; LOAD_ASSERTION_ERROR of older versions pushes the first of them. */
static int read_common(PyObject *module) {
    PyObject *list = PyObject_GetAttrString(module, "_common_constants");
    if (!list) {
        cc_raised_clear();
        list = Py_BuildValue("(O)", PyExc_AssertionError);
    }
    cc_optab.common = list ? PySequence_Tuple(list) : NULL;
    Py_XDECREF(list);
    return cc_optab.common ? 0 : -1;
}

PyObject *cc_optab_common(int i) {
    return i < PyTuple_GET_SIZE(cc_optab.common) ? PyTuple_GET_ITEM(cc_optab.common, i) : NULL;
}

int cc_optab_init(void) {
    PyObject *module = PyImport_ImportModule("opcode");
    PyObject *opmap = module ? PyObject_GetAttrString(module, "opmap") : NULL;
    int status = -1;
    if (opmap && PyDict_Check(opmap)) {
        memset(&cc_optab, 0, sizeof cc_optab);
        match_rows(opmap);
        cc_optab.extended_arg = number(opmap, "EXTENDED_ARG");
        cc_optab.kw_names = number(opmap, "KW_NAMES");
        cc_optab.precall = number(opmap, "PRECALL");
        cc_optab.call = number(opmap, "CALL");
        cc_optab.not_taken = number(opmap, "NOT_TAKEN");
        cc_optab.load_special = number(opmap, "LOAD_SPECIAL");
        cc_optab.copy = number(opmap, "COPY");
        cc_optab.swap = number(opmap, "SWAP");
        cc_optab.null_last = number(opmap, "CALL_KW") >= 0;
        /* 3.12 ends a loop with END_FOR, 3.13 with END_FOR and POP_TOP, 3.14 with END_FOR and POP_ITER. */
        cc_optab.for_skip = number(opmap, "END_FOR") < 0 ? 0 : cc_optab.null_last ? 2 : 1;
        cc_optab.to_tuple = position(module, "_intrinsic_1_descs", "INTRINSIC_LIST_TO_TUPLE");
        cc_optab.positive = position(module, "_intrinsic_1_descs", "INTRINSIC_UNARY_POSITIVE");
        cc_optab.stop_error = position(module, "_intrinsic_1_descs", "INTRINSIC_STOPITERATION_ERROR");
        status = read_caches(module, opmap) < 0 || check_binops(module) < 0 || read_common(module) < 0 ? -1 : 0;
    }
    Py_XDECREF(opmap);
    Py_XDECREF(module);
    return status;
}
