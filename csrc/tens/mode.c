/* Ambient state: what torch's C code reads without getting it as an argument. Each row of mode.def is one word of
 * CcMode.
 *
 * Rows call exported C functions of libtorch (1-2 ns each). At init each is compared with torch's Python function,
 * which replaces it if they disagree or the symbol is missing. Strong references keep modules and callables alive;
 * torch keeps them for the life of the process anyway. */
#include "tens_int.h"

/* see mode.def; PYTHON and ABSENT are fallbacks */
typedef enum How { BOOL, SMALL, DEPTH, DEVB, DEVS, CTXB, CTXP, VAR, KEYS, KEY, ATTR, LOCAL, STACK, PYTHON, ABSENT } How;

enum {
#define CC_MODE(id, ...) M_##id,
#define CC_MODE_SET(id, path)
#include "mode.def"
#undef CC_MODE
#undef CC_MODE_SET
    M_COUNT
};
#define PRECISION "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"
_Static_assert((int)M_COUNT <= (int)CC_MODE_MAX, "raise CC_MODE_MAX in tens.h");

typedef struct Row {
    const char *name;
    How how;
    const char *symbol;
    int arg;
    const char *path, *path_arg, *refuse, *doc;
} Row;

static const Row ROW[M_COUNT] = {
#define CC_MODE(id, how, symbol, arg, path, path_arg, refuse, doc) {#id, how, symbol, arg, path, path_arg, refuse, doc},
#define CC_MODE_SET(id, path)
#include "mode.def"
#undef CC_MODE
#undef CC_MODE_SET
};

static const char *const SETTER[M_COUNT] = {
#define CC_MODE(id, ...)
#define CC_MODE_SET(id, path) [M_##id] = path,
#include "mode.def"
#undef CC_MODE
#undef CC_MODE_SET
};

typedef struct Reader {
    How how;
    int8_t device;
    void *at;     /* the function or variable */
    uint64_t key; /* KEY */
    /* PYTHON: callable, and argument or NULL; ATTR: module dict and attribute name; LOCAL: threading.local, "flag" */
    PyObject *call, *arg;
} Reader;

static struct {
    Reader row[M_COUNT];
    const void *context; /* the process's at::Context */
    uint64_t included_ok, excluded_ok, autograd;
    int (*threads)(void);
    PyObject *py_threads;
    PyObject *nest[2], *clear; /* increment and decrement autocast's nesting depth; clear its cache */
} M;

/* ------------------------------------------------------------------ reading */

static intptr_t word_of(PyObject *value) {
    if (value == Py_True) return 1;
    if (value == Py_False || value == Py_None) return 0;
    if (PyLong_Check(value)) return (intptr_t)PyLong_AsLongLong(value);
    /* each call creates a new string, so compare hashes */
    if (PyUnicode_Check(value)) return (intptr_t)PyObject_Hash(value);
    /* dtypes are immortal, so their address identifies them; for other objects only existence counts */
    return cc_tens_constant(value) ? (intptr_t)value : 1;
}

static intptr_t read_python(const Reader *r) {
    PyObject *type, *error, *tb;
    PyErr_Fetch(&type, &error, &tb);
    PyObject *value = r->arg == NULL          ? PyObject_CallNoArgs(r->call)
                      : PyTuple_Check(r->arg) ? PyObject_CallObject(r->call, r->arg)
                                              : PyObject_CallOneArg(r->call, r->arg);
    intptr_t word = value ? word_of(value) : -1;
    Py_XDECREF(value);
    PyErr_Restore(type, error, tb);
    return word;
}

static intptr_t read_attr(const Reader *r, int bias) {
    PyObject *value = PyDict_GetItemWithError(r->call, r->arg);
    return value ? word_of(value) + bias : 0;
}

/* A thread that has not set the flag sets it now, because reading an attribute that is absent costs an exception. Not
 * inlined: cc_mode_read, which each call runs, would no longer inline read_row. */
static __attribute__((noinline)) intptr_t read_local(const Reader *r) {
    PyObject *type, *error, *tb;
    PyErr_Fetch(&type, &error, &tb);
    PyObject *value = PyObject_GetAttr(r->call, r->arg);
    if (value == NULL) {
        cc_raised_clear();
        if (PyObject_SetAttr(r->call, r->arg, Py_False) < 0) cc_raised_clear();
    }
    const intptr_t word = value != NULL ? word_of(value) : 0;
    Py_XDECREF(value);
    PyErr_Restore(type, error, tb);
    return word;
}

static inline __attribute__((always_inline)) intptr_t read_row(int i, const uint64_t *keys) {
    const Reader *r = &M.row[i];
    switch (r->how) {
    case BOOL: return ((bool (*)(void))r->at)();
    case SMALL: return (uint8_t)((int (*)(void))r->at)();
    case DEPTH: return (intptr_t)((int64_t (*)(void))r->at)();
    case DEVB: return ((bool (*)(int8_t))r->at)(r->device);
    case DEVS: return (uint8_t)((int (*)(int8_t))r->at)(r->device);
    case CTXB: return ((bool (*)(const void *))r->at)(M.context);
    case CTXP: return (uint8_t)((int (*)(const void *, int, int))r->at)(M.context, ROW[i].arg >> 4, ROW[i].arg & 15);
    case VAR: return *(const bool *)r->at;
    case KEYS: return (intptr_t)keys[ROW[i].arg];
    case KEY: return (keys[0] & r->key) != 0;
    case ATTR: return read_attr(r, ROW[i].arg);
    case LOCAL: return read_local(r);
    case STACK: return cc_devmode_word(ROW[i].arg != 0);
    case PYTHON: return read_python(r);
    case ABSENT: return 0;
    }
    return 0;
}

void cc_mode_read(CcMode *out) {
    static const uint64_t none[2];
    const uint64_t *keys = cc_tsym_tls_keys();
    if (!keys) keys = none;
    for (int i = 0; i < M_COUNT; i++) out->v[i] = read_row(i, keys);
    for (int i = M_COUNT; i < CC_MODE_MAX; i++) out->v[i] = 0;
}

bool cc_mode_same(const CcMode *a, const CcMode *b) { return memcmp(a->v, b->v, M_COUNT * sizeof a->v[0]) == 0; }

const char *cc_mode_diff(const CcMode *a, const CcMode *b) {
    for (int i = 0; i < M_COUNT; i++)
        if (a->v[i] != b->v[i]) return ROW[i].doc;
    return NULL;
}

const char *cc_mode_refusal(const CcMode *m) {
    for (int i = 0; i < M_COUNT; i++)
        if (ROW[i].refuse && m->v[i]) return ROW[i].refuse;
    uint64_t in = (uint64_t)m->v[M_KEYS_INCLUDED], ex = (uint64_t)m->v[M_KEYS_EXCLUDED];
    if ((in & ~M.included_ok) || (ex & ~M.excluded_ok))
        return "torch's dispatcher is redirected on this thread (a dispatch key was included or "
               "excluded)";
    if ((ex & M.autograd) && !m->v[M_INFERENCE])
        return "autograd's dispatch keys are excluded on this thread (inside an autograd kernel)";
    return NULL;
}

bool cc_mode_deterministic(const CcMode *m) { return m->v[M_DETERMINISTIC] != 0; }

bool cc_mode_fills_memory(const CcMode *m) { return m->v[M_DETERMINISTIC] != 0 && m->v[M_FILL_UNINITIALIZED] != 0; }

bool cc_mode_onednn(const CcMode *m) { return m->v[M_MKLDNN] != 0; }

bool cc_mode_keeps_casts(const CcMode *m) { return m->v[M_AUTOCAST_CPU] != 0 && m->v[M_AUTOCAST_CACHE] != 0; }

static intptr_t read_one(int i) {
    static const uint64_t none[2];
    const uint64_t *keys = cc_tsym_tls_keys();
    return read_row(i, keys ? keys : none);
}

bool cc_mode_autocast_cpu(void) { return read_one(M_AUTOCAST_CPU) != 0; }

bool cc_mode_grad_now(void) { return read_one(M_GRAD) != 0; }

bool cc_mode_device_now(void) { return read_one(M_DEFAULT_DEVICE) != 0 && read_one(M_FUNCTION_MODES) == 0; }

bool cc_mode_inference(const CcMode *m) { return m->v[M_INFERENCE] != 0; }

bool cc_mode_grad(const CcMode *m) { return m->v[M_GRAD] != 0; }

/* The object that a row's setter takes for this word. */
static PyObject *value_of(int i, intptr_t word) {
    if (i != M_AUTOCAST_CPU_DTYPE && i != M_AUTOCAST_CUDA_DTYPE) return Py_NewRef(word ? Py_True : Py_False);
    if (M.row[i].how == PYTHON) return Py_NewRef((PyObject *)word);
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *dtype =
        torch ? PyObject_GetAttrString(torch, cc_dtype_info(cc_tens_dtype_of((int)word))->torch_name) : NULL;
    Py_XDECREF(torch);
    return dtype;
}

/* No caller can handle the error; the call continues in another way. */
static void log_not_restored(const char *what) {
    cc_raised_clear();
    cc_log_add(CC_LOG_FALLBACK, "could not restore the state from before the call: %s", what);
}

static void set_row(int i, intptr_t word) {
    PyObject *set = cc_tsym_path(SETTER[i]), *value = value_of(i, word);
    PyObject *r = !set || !value            ? NULL
                  : ROW[i].path_arg != NULL ? PyObject_CallFunction(set, "sO", ROW[i].path_arg, value)
                                            : PyObject_CallOneArg(set, value);
    if (!r) log_not_restored(ROW[i].doc);
    Py_XDECREF(r);
    Py_XDECREF(value);
    Py_XDECREF(set);
}

void cc_mode_restore(const CcMode *m) {
    CcMode now;
    cc_mode_read(&now);
    for (int i = 0; i < M_COUNT; i++)
        if (SETTER[i] && now.v[i] != m->v[i]) set_row(i, m->v[i]);
}

void cc_mode_undo_nesting(PyObject *f) {
    const int which = f == M.nest[0] ? 0 : f == M.nest[1] ? 1 : -1;
    if (which < 0) return;
    PyObject *depth = PyObject_CallNoArgs(M.nest[1 - which]);
    if (depth && which == 0 && M.clear && PyLong_AsLong(depth) == 0) Py_XSETREF(depth, PyObject_CallNoArgs(M.clear));
    if (!depth) log_not_restored("autocast's nesting depth");
    Py_XDECREF(depth);
}

void cc_mode_set_grad(bool on) {
    if (cc_mode_grad_now() != on) set_row(M_GRAD, on);
}

void cc_mode_restore_grad(const CcMode *m) { cc_mode_set_grad(cc_mode_grad(m)); }

CcDtype cc_mode_default_dtype(void) {
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *dtype = torch ? PyObject_CallMethod(torch, "get_default_dtype", NULL) : NULL;
    /* "torch.float32". Not PyObject_Str: it handles signals first, and what a handler raises would be cleared below. */
    PyObject *text = dtype ? Py_TYPE(dtype)->tp_str(dtype) : NULL;
    const char *name = text ? PyUnicode_AsUTF8(text) : NULL;
    const char *dot = name ? strchr(name, '.') : NULL;
    CcDtype found = CC_DT_OTHER;
    for (int dt = 1; dot && dt < CC_DT_COUNT; dt++)
        if (!strcmp(cc_dtype_info((CcDtype)dt)->torch_name, dot + 1)) found = (CcDtype)dt;
    cc_raised_clear();
    Py_XDECREF(text);
    Py_XDECREF(dtype);
    Py_XDECREF(torch);
    return found;
}

int cc_mode_threads(void) {
    if (M.threads) return M.threads();
    PyObject *n = M.py_threads ? PyObject_CallNoArgs(M.py_threads) : NULL;
    int threads = n ? (int)PyLong_AsLong(n) : 1;
    Py_XDECREF(n);
    cc_raised_clear();
    return threads;
}

int cc_mode_count(void) { return M_COUNT; }

const char *cc_mode_name(int row) { return row >= 0 && row < M_COUNT ? ROW[row].name : NULL; }

/* ------------------------------------------------------------------ init */

/* Splits "cuda matmul" into two arguments. */
static PyObject *words_of(PyObject *text) {
    PyObject *list = PyUnicode_Split(text, NULL, -1), *words = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return words;
}

static void use_python(int i, Reader *r) {
    const Row *row = &ROW[i];
    r->how = ABSENT;
    if (!row->path) return;
    r->call = cc_tsym_path(row->path);
    r->arg = row->path_arg ? PyUnicode_FromString(row->path_arg) : NULL;
    if (r->arg && row->how == CTXP) Py_SETREF(r->arg, words_of(r->arg));
    if (r->call && PyCallable_Check(r->call) && (r->arg || !row->path_arg)) r->how = PYTHON;
}

/* The path's last part is an attribute of a module, which torch may have replaced by the `flag` of a threading.local:
 * the row's path_arg. */
static void use_attr(int i, Reader *r) {
    r->call = ROW[i].path_arg ? cc_tsym_path(ROW[i].path_arg) : NULL;
    r->arg = r->call ? PyUnicode_InternFromString("flag") : NULL;
    r->how = r->arg ? LOCAL : ABSENT;
    if (r->call) return;
    char module[96];
    snprintf(module, sizeof module, "%s", ROW[i].path);
    char *dot = strrchr(module, '.');
    *dot = 0;
    PyObject *m = cc_tsym_path(module);
    if (m && PyModule_Check(m)) {
        r->call = Py_NewRef(PyModule_GetDict(m));
        r->arg = PyUnicode_InternFromString(dot + 1);
        if (r->arg) r->how = ATTR;
    }
    Py_XDECREF(m);
}

/* Whether C and Python report the same state. Not compared: dtype and enum rows, which the two represent
 * differently. */
static bool agrees(int i, const Reader *r, const uint64_t *keys) {
    if (r->how == DEVS || r->how == SMALL || r->how == CTXP || !ROW[i].path) return true;
    Reader python = {0};
    use_python(i, &python);
    bool same = python.how != PYTHON || (read_python(&python) != 0) == (read_row(i, keys) != 0);
    Py_XDECREF(python.call);
    Py_XDECREF(python.arg);
    return same;
}

/* Whether the row belongs to a CUDA library, in a torch built without CUDA. */
static bool of_absent_library(const Row *row) {
    enum { CUDA = 1 };
    if (row->how != CTXP || row->arg >> 4 != CUDA) return false;
    PyObject *has = cc_tsym_path("torch._C._has_cuda");
    Py_XDECREF(has); /* True and False are immortal */
    return has == Py_False;
}

static void init_row(int i, const int8_t device[2], bool fallback) {
    const Row *row = &ROW[i];
    Reader *r = &M.row[i];
    Py_CLEAR(r->call);
    Py_CLEAR(r->arg);
    if (row->how == ATTR) {
        use_attr(i, r);
        return;
    }
    if (row->how == STACK) {
        r->how = STACK;
        return;
    }
    const uint64_t *keys = cc_tsym_tls_keys();
    bool found;
    if (row->how == KEYS) {
        found = keys != NULL;
    } else if (row->how == KEY) {
        r->key = cc_tsym_key(row->symbol);
        found = keys && r->key;
    } else {
        r->at = cc_tsym_find(row->symbol);
        found = r->at && (M.context || (row->how != CTXB && row->how != CTXP));
        if (row->how == DEVB || row->how == DEVS) {
            r->device = device[row->arg];
            found = found && r->device >= 0;
        }
    }
    r->how = row->how;
    if (of_absent_library(row)) r->how = ABSENT;
    else if (fallback || !found || !agrees(i, r, keys)) use_python(i, r);
}

static void init_rows(bool fallback) {
    int32_t (*cpu)(void) = cc_tsym_find("aoti_torch_device_type_cpu");
    int32_t (*cuda)(void) = cc_tsym_find("aoti_torch_device_type_cuda");
    const int8_t device[2] = {cpu ? (int8_t)cpu() : -1, cuda ? (int8_t)cuda() : -1};
    const void *(*context)(void) = cc_tsym_find("_ZN2at13globalContextEv");
    M.context = context ? context() : NULL;
    cc_devmode_init(fallback);
    for (int i = 0; i < M_COUNT; i++) init_row(i, device, fallback);
}

/* Tests: reads every row by its Python path. */
void cc_mode_force_fallback(bool on) { init_rows(on); }

int cc_mode_init(void) {
    init_rows(false);
    uint64_t autocast = cc_tsym_key("AutocastCPU") | cc_tsym_key("AutocastCUDA");
    M.autograd =
        cc_tsym_key("AutogradFunctionality") | cc_tsym_key("AutogradOther") | cc_tsym_key("AutogradNestedTensor");
    /* KEYS words are relative to torch's defaults; these keys may be set */
    M.included_ok = autocast | cc_tsym_key("ADInplaceOrView");
    M.excluded_ok = autocast | M.autograd | cc_tsym_key("ADInplaceOrView");
    M.threads = cc_tsym_find("_ZN2at15get_num_threadsEv");
    Py_XSETREF(M.py_threads, cc_tsym_path("torch.get_num_threads"));
    Py_XSETREF(M.nest[0], cc_tsym_path("torch._C.autocast_increment_nesting"));
    Py_XSETREF(M.nest[1], cc_tsym_path("torch._C.autocast_decrement_nesting"));
    Py_XSETREF(M.clear, cc_tsym_path("torch._C.clear_autocast_cache"));
    cc_raised_clear();
    return 0;
}
