/* Attribute access. Follows the object's generic lookup (type, then instance dict, then __getattr__) before it happens,
 * and guards each step that decides the outcome, including those that find nothing: Python code that the lookup runs
 * (properties, __get__, __getattr__) arrives as frames, and may store what it makes. The provenance of the result is
 * learnt afterwards. */
#include "rec_events.h"
#include <structmember.h>

/* the slots of classes that define __getattr__ or __getattribute__ in Python */
static getattrofunc slot_getattr, slot_getattribute;
static setattrofunc slot_setattr;
destructor cc_class_dealloc, cc_class_dealloc_of_tensors;
static PyObject *str_getattr, *str_getattribute, *str_dict, *str_class, *str_requires_grad, *str_setattr, *str_delattr;

int cc_attr_init(void) {
    PyObject *ns = cc_obj_run("class A:\n def __getattr__(self, n): pass\n def __setattr__(self, n, v): pass\n"
                              "class B:\n def __getattribute__(self, n): pass\n");
    if (ns == NULL) return -1;
    const PyTypeObject *a = (PyTypeObject *)cc_obj_item(ns, "A"), *b = (PyTypeObject *)cc_obj_item(ns, "B");
    slot_getattr = a->tp_getattro;
    slot_setattr = a->tp_setattro;
    cc_class_dealloc = a->tp_dealloc;
    PyObject *tensor = cc_obj_of_module("torch", "Tensor");
    if (tensor == NULL) return -1;
    cc_class_dealloc_of_tensors = ((PyTypeObject *)tensor)->tp_dealloc;
    Py_DECREF(tensor);
    /* the first use replaces the general slot by the special one */
    PyObject *sample = PyObject_CallNoArgs((PyObject *)b);
    PyObject *r = sample != NULL ? PyObject_GetAttrString(sample, "any") : NULL;
    Py_XDECREF(sample);
    if (r == NULL) return -1;
    Py_DECREF(r);
    slot_getattribute = b->tp_getattro;
    Py_DECREF(ns);
    str_getattr = cc_obj_intern("__getattr__");
    str_getattribute = cc_obj_intern("__getattribute__");
    str_dict = cc_obj_intern("__dict__");
    str_class = cc_obj_intern("__class__");
    str_requires_grad = cc_obj_intern("requires_grad");
    str_setattr = cc_obj_intern("__setattr__");
    str_delattr = cc_obj_intern("__delattr__");
    return str_delattr != NULL ? 0 : -1;
}

static bool known_getattro(PyTypeObject *t) {
    const getattrofunc f = t->tp_getattro;
    return f == PyObject_GenericGetAttr || f == slot_getattr || f == slot_getattribute ||
           f == PyType_Type.tp_getattro || f == PyModule_Type.tp_getattro || f == PySuper_Type.tp_getattro ||
           f == PyMethod_Type.tp_getattro || t == &PyFunction_Type || t == cc_known_type(CC_KNOWN_LOCAL) ||
           t == cc_known_type(CC_KNOWN_PYBIND_TYPE); /* of a type: its methods are unbound */
}

/* C getsets of CPython's own types, and the device of a generator of torch's, read only the object. */
static bool pure_getset(const PyDescrObject *d) {
    PyTypeObject *t = d->d_type;
    if (t == cc_known_type(CC_KNOWN_GENERATOR)) return PyUnicode_CompareWithASCIIString(d->d_name, "device") == 0;
    return !cc_python_class(t) &&
           (t == &PyFunction_Type || t == &PyCode_Type || t == &PyMethod_Type || t == &PyType_Type ||
            t == &PyBaseObject_Type || t == &PyProperty_Type || t == &PySlice_Type || t == &PyRange_Type ||
            t == &PyModule_Type || t == &PyCell_Type || t == &PyLong_Type || t == &PyFloat_Type ||
            t == &PyComplex_Type || t == &PyStaticMethod_Type || t == &PyClassMethod_Type || t == &PyCFunction_Type ||
            t == &PyMethodDescr_Type || PyType_IsSubtype(t, (PyTypeObject *)PyExc_BaseException));
}

/* Whether the lookup may run unknown C code. */
static bool opaque_descriptor(PyObject *d) {
    PyTypeObject *t = Py_TYPE(d);
    if (cc_dunder_describes(d)) return true;
    if (cc_python_class(t) || t->tp_descr_get == NULL) return false;
    if (t == &PyGetSetDescr_Type) {
        const PyDescrObject *descr = (PyDescrObject *)d;
        return !pure_getset(descr) && PyUnicode_Compare(descr->d_name, str_dict) != 0 &&
               PyUnicode_CompareWithASCIIString(descr->d_name, "__weakref__") != 0;
    }
    return !(t == &PyFunction_Type || t == &PyProperty_Type || t == &PyMemberDescr_Type || t == &PyMethodDescr_Type ||
             t == &PyWrapperDescr_Type || t == &PyClassMethod_Type || t == &PyStaticMethod_Type ||
             t == &PyMethod_Type || t == &PyClassMethodDescr_Type || t == &PyInstanceMethod_Type ||
             t == cc_known_type(CC_KNOWN_TUPLE_FIELD) || cc_call_breaks(d) || cc_call_function(d) != NULL ||
             cc_cache_is(d) || PyType_Check(d) || PyCFunction_Check(d) || cc_value_const(d));
}

/* Guards the type's attribute. -1: a static type, which can't change. */
static int guard_type_attr(CcRec *rec, PyTypeObject *type, PyObject *name, PyObject *d) {
    if (!cc_mutable_class(type) || rec->trace == NULL) return -1;
    struct CcLooked *l = &rec->looked[((uintptr_t)type >> 6 ^ (uintptr_t)name >> 4) % CC_FOUND];
    if (l->type == type && l->name == name && l->found == d && rec->ran.co == NULL) return l->guard;
    const int guard = cc_value_read(rec, CC_SRC_TLOOK, cc_value_const_source(rec, (PyObject *)type), name, 0, 0, d);
    /* each read of a constant needs its own guard: the constant may be a symbol */
    if (d == NULL || !cc_value_const(d)) *l = (struct CcLooked){type, name, d, guard};
    return guard;
}

bool cc_attr_is_leaf(PyObject *tensor) {
    PyObject *leaf = PyObject_GetAttrString(tensor, "is_leaf");
    Py_XDECREF(leaf);
    cc_raised_clear();
    return leaf == Py_True;
}

/* x.grad: only autograd and set_gradient() write it. Reading it from a tensor that is not a leaf would warn. */
static bool held_known(CcRec *rec, PyObject *o) {
    return (!cc_tens_requires_grad(o) || cc_attr_is_leaf(o)) && cc_value_source(rec, o) >= 0;
}

/* A class attribute that this trace has written can be read through that class or its instances. Classes that inherit
 * it are not covered: no guard tells their reads apart. */
static bool written_elsewhere(const CcRec *rec, PyObject *o, PyObject *name) {
    PyTypeObject *t = PyType_Check(o) ? (PyTypeObject *)o : Py_TYPE(o);
    for (int i = 0; i < rec->of_class.n; i++) {
        const struct CcOfClass *w = &rec->of_class.at[i];
        if (Py_IS_TYPE(o, &PySuper_Type) || PyUnicode_Compare(name, str_dict) == 0) return true;
        if (w->type != t && PyType_IsSubtype(t, w->type) && PyUnicode_Compare(name, w->name) == 0) return true;
    }
    return false;
}

/* ------------------------------------------------------------------ before: guards on the lookup */

/* Guards o's class. __class__ of an object that is guarded by identity, or that a constant refers to, can be
 * assigned. */
void cc_attr_class_of(CcRec *rec, PyObject *o) {
    if (!cc_mutable_class(Py_TYPE(o)) && !PyModule_Check(o)) return;
    const int source = cc_value_source(rec, o);
    CcGuards *gs = &rec->trace->guards;
    if (source < 0 || gs->g.at[source].check == CC_CHK_TYPE || gs->g.at[source].check == CC_CHK_TENSOR) return;
    cc_guard_once(gs, CC_SRC_TYPE, source, NULL, 0, CC_CHK_IDENT, (PyObject *)Py_TYPE(o));
}

static void guard_special(CcRec *rec, PyTypeObject *type, PyObject *name) {
    if (cc_mutable_class(type)) guard_type_attr(rec, type, name, cc_type_lookup(type, name));
}

void cc_attr_dunder(CcRec *rec, PyObject *o, const char *name) {
    if (!cc_mutable_class(Py_TYPE(o))) return;
    PyObject *s = cc_obj_intern(name);
    cc_attr_class_of(rec, o);
    guard_special(rec, Py_TYPE(o), s);
    Py_DECREF(s);
}

/* Whether an object found in a class is a descriptor depends on its own class. */
static void guard_descriptor(CcRec *rec, PyObject *d) {
    static const char *const names[] = {"__get__", "__set__", "__delete__"};
    for (int i = 0; d != NULL && i < CC_COUNT(names); i++) cc_attr_dunder(rec, d, names[i]);
}

/* Looks type(o).name up under guards, including whether it is a descriptor. */
static PyObject *look_in_class(CcRec *rec, CcAct *act, PyTypeObject *type, PyObject *name) {
    PyObject *d = cc_type_lookup(type, name);
    const int guard = guard_type_attr(rec, type, name, d);
    if (guard < 0 || d == NULL) return d;
    guard_descriptor(rec, d);
    if (Py_TYPE(d)->tp_descr_get == NULL) cc_rec_gives(rec, act, guard);
    return d;
}

/* Whether the class has a __getattribute__ in Python. */
static bool answers_in_python(PyTypeObject *type) {
    if (!cc_python_class(type)) return false;
    PyObject *hook = cc_type_lookup(type, str_getattribute);
    return hook != NULL && cc_call_function(hook) != NULL;
}

/* Whether the class has a __setattr__ (or __delattr__) in Python. */
static bool stores_in_python(PyTypeObject *type, bool deletes) {
    if (type->tp_setattro != slot_setattr) return false;
    PyObject *hook = cc_type_lookup(type, deletes ? str_delattr : str_setattr);
    return hook != NULL && cc_call_function(hook) != NULL;
}

static bool look_at_hook(CcRec *rec, PyTypeObject *type) {
    guard_special(rec, type, str_getattribute);
    if (!answers_in_python(type)) return false;
    guard_special(rec, type, str_getattr); /* runs when that raises */
    return true;
}

/* What a property (fget, fset, fdel) calls, if no frame shows the call: C code, or an object that is called by C code.
 * NULL: there is no such part, or it is a Python function. */
static PyObject *unseen_part(PyObject *d, const char *part) {
    if (d == NULL || !PyObject_TypeCheck(d, &PyProperty_Type)) return NULL;
    PyObject *name = cc_obj_intern(part), *member = cc_type_lookup(&PyProperty_Type, name);
    PyObject *f = Py_TYPE(member)->tp_descr_get(member, d, NULL); /* a derived class may have an fget in Python */
    cc_raised_clear();
    Py_DECREF(name);
    Py_XDECREF(f); /* the property holds it */
    return f == NULL || f == Py_None || cc_call_function(f) != NULL ? NULL : f;
}

/* A descriptor implemented in Python: its code is recorded, and may raise AttributeError. */
static bool runs_python(PyObject *d) { return cc_python_class(Py_TYPE(d)) || Py_IS_TYPE(d, &PyProperty_Type); }

/* Where the attributes of an instance are: a threading.local has a dict for each thread. */
static PyObject *dict_of(PyObject *o) { return cc_known_is(o, CC_KNOWN_LOCAL) ? cc_obj_local_dict(o) : cc_obj_dict(o); }

static int read_dict(CcRec *rec, PyObject *o, int source, PyObject *dict) {
    const CcSource kind = cc_known_is(o, CC_KNOWN_LOCAL) ? CC_SRC_LOCAL : CC_SRC_DICTOF;
    return cc_value_read(rec, kind, source, NULL, 0, 0, dict);
}

static PyObject *look_in_dict(CcRec *rec, CcAct *act, PyObject *o, int source, PyObject *name) {
    PyObject *dict = dict_of(o), *own = dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    if (source >= 0 && dict != NULL) {
        const int ds = read_dict(rec, o, source, dict);
        /* vars(o).update(...): guards the whole earlier content */
        if (cc_value_dirty_key(rec, dict) == CC_DIRTY_ALL) (void)cc_value_dirty(rec, dict);
        if (cc_value_known(rec, dict)) return own;
        const int guard = cc_value_read(rec, CC_SRC_KEY, ds, name, 0, 0, own);
        if (own != NULL) cc_rec_gives(rec, act, guard);
    } else if (source >= 0 && cc_obj_may_have_dict(o)) { /* a function's dict is made when its first attribute is set */
        cc_value_read(rec, CC_SRC_OWN, source, name, 0, 0, NULL);
    }
    return own;
}

/* The object in a slot of a class with __slots__; NULL: empty. */
static PyObject *look_in_slot(CcRec *rec, CcAct *act, PyObject *o, int source, PyObject *d) {
    PyObject *v = Py_TYPE(d)->tp_descr_get(d, o, (PyObject *)Py_TYPE(o));
    if (v == NULL) cc_raised_clear();
    if (source >= 0) cc_rec_gives(rec, act, cc_value_read(rec, CC_SRC_MEMBER, source, d, 0, 0, v));
    if (v != NULL && cc_value_const(v)) cc_vec_push(&rec->keep, v); /* a number made by the slot's C getter */
    else Py_XDECREF(v);                                             /* the slot holds it */
    return v;
}

static CcGo look_instance(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, bool generic) {
    PyTypeObject *t = Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (!generic && look_at_hook(rec, t)) return CC_OK; /* the hook is recorded */
    PyObject *d = cc_type_lookup(t, name);
    if (d != NULL && opaque_descriptor(d)) return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, cc_type_name(d));
    const CcProv *p = cc_value_find(rec, o);
    const bool slot = d != NULL && Py_IS_TYPE(d, &PyMemberDescr_Type);
    if (p != NULL && p->dirty == CC_DIRTY_ALL && slot) return cc_rec_break(rec, act, CC_R_DIRTY_READ, t->tp_name);
    (void)look_in_class(rec, act, t, name); /* its __get__ may be Python code, whose self it is */
    const int source = cc_value_source(rec, o);
    bool found = true; /* otherwise __getattr__ runs; a Python descriptor may raise AttributeError */
    if (slot) found = look_in_slot(rec, act, o, source, d) != NULL;
    else if (d != NULL && Py_TYPE(d)->tp_descr_set != NULL) found = !runs_python(d);
    else if (look_in_dict(rec, act, o, source, name) == NULL) found = d != NULL && !runs_python(d);
    if (!found && !generic) guard_special(rec, t, str_getattr);
    return CC_OK;
}

/* A bound method forwards attributes that it lacks to its function. */
static CcGo look_method(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    if (cc_type_lookup(&PyMethod_Type, name) != NULL) return look_instance(rec, act, o, name, false);
    PyObject *function = PyMethod_GET_FUNCTION(o);
    const int source = cc_value_source(rec, o);
    if (source >= 0) cc_value_read(rec, CC_SRC_MFUNC, source, NULL, 0, 0, function);
    return look_instance(rec, act, function, name, false);
}

static CcGo look_type(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    PyTypeObject *t = (PyTypeObject *)o, *meta = Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (look_at_hook(rec, meta)) return CC_OK;
    PyObject *m = look_in_class(rec, act, meta, name), *d = look_in_class(rec, act, t, name);
    if (cc_dunder_describes(m) || cc_dunder_describes(d)) return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, t->tp_name);
    if ((m == NULL && d == NULL) || (m != NULL && runs_python(m)) || (d != NULL && runs_python(d)))
        guard_special(rec, meta, str_getattr);
    return CC_OK;
}

static CcGo look_module(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    PyTypeObject *t = Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (look_at_hook(rec, t)) return CC_OK;
    PyObject *d = look_in_class(rec, act, t, name), *dict = PyModule_GetDict(o);
    const bool python = d != NULL && runs_python(d), data = d != NULL && Py_TYPE(d)->tp_descr_set != NULL;
    const int ds = cc_value_const_source(rec, dict);
    PyObject *own = python && data ? NULL : PyDict_GetItemWithError(dict, name);
    const int guard = python && data ? -1 : cc_value_read(rec, CC_SRC_KEY, ds, name, 0, 0, own);
    if (own != NULL) cc_rec_gives(rec, act, guard);
    if (own != NULL || (d != NULL && !python)) return CC_OK;
    PyObject *other = PyDict_GetItemWithError(dict, str_getattr);
    if (other != NULL && cc_call_function(other) == NULL)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    cc_value_read(rec, CC_SRC_KEY, ds, str_getattr, 0, 0, other);
    guard_special(rec, t, str_getattr);
    return CC_OK;
}

/* A part of a tensor, read by C code or a property of torch. */
static CcGo part_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    const CcTorch torch = cc_torch_attr(o, name);
    if (torch.cls == CC_T_META && cc_node_unsized(rec, o) && cc_sym_tells_size(PyUnicode_AsUTF8(name)))
        return cc_rec_break(rec, act, CC_R_DATA_SHAPE, PyUnicode_AsUTF8(name));
    const char *said = torch.name != NULL ? torch.name : PyUnicode_AsUTF8(name);
    if (torch.cls == CC_T_VALUE) return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, said);
    if (torch.cls == CC_T_BREAK || (torch.cls == CC_T_HELD && !held_known(rec, o)))
        return cc_call_torch(rec, act, said, torch.why);
    if (torch.by_grad) rec->read_grad = true;
    if (PyUnicode_Compare(name, str_requires_grad) == 0) {
        rec->read_grad = true;
        /* without grad mode a view requires grad as its base does, and a copy does not: reshape gives either */
        if (!cc_mode_grad_now() && cc_value_origin(rec, o) == CC_O_VALUE && cc_sym_sized(rec, o))
            rec->rigid = "requires_grad of a result is read without grad mode";
    }
    return CC_OK;
}

static bool part_of_tensor(const PyObject *d) {
    return d != NULL && (Py_IS_TYPE(d, &PyGetSetDescr_Type) || Py_IS_TYPE(d, &PyProperty_Type));
}

static CcGo tensor_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    if (!cc_tens_plain(o)) return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, cc_type_name(o));
    if (cc_value_origin(rec, o) == CC_O_UNKNOWN) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "tensor");
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    const CcGo go = part_of_tensor(d) ? part_before(rec, act, o, name) : CC_OK;
    if (go != CC_OK) return go;
    if (part_of_tensor(d)) cc_value_requires_read(rec, o);
    /* torch.Tensor is a Python class, whose methods can be patched */
    (void)look_at_hook(rec, Py_TYPE(o));
    (void)look_in_class(rec, act, Py_TYPE(o), name);
    const int source = cc_value_source(rec, o);
    PyObject *dict = cc_obj_dict(o); /* made when the first attribute is set */
    PyObject *own = dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    if (!part_of_tensor(d) && source >= 0) {
        const int guard = cc_value_read(rec, CC_SRC_OWN, source, name, 0, 0, own);
        if (own != NULL) cc_rec_gives(rec, act, guard);
    }
    if ((d == NULL && own == NULL) || (d != NULL && runs_python(d))) guard_special(rec, Py_TYPE(o), str_getattr);
    return CC_OK;
}

void cc_attr_mro(CcRec *rec, PyObject *type) {
    CcGuards *gs = &rec->trace->guards;
    cc_guard_once(gs, CC_SRC_MRO, cc_value_const_source(rec, type), NULL, 0, CC_CHK_MRO,
                  ((PyTypeObject *)type)->tp_mro);
}

/* super().name: the types after the class in the MRO decide. */
static CcGo look_super(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    PyTypeObject *first, *type = cc_obj_super(o, &first);
    if (type == NULL) return CC_OK;
    PyObject *mro = type->tp_mro;
    bool behind = false;
    cc_attr_mro(rec, (PyObject *)type);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *t = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        if (!behind) {
            behind = t == first;
            continue;
        }
        PyObject *d = look_in_class(rec, act, t, name);
        if (unseen_part(d, "fget") != NULL || cc_dunder_describes(d))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
        if (PyDict_GetItemWithError(cc_type_dict(t), name) != NULL) break;
    }
    cc_raised_clear();
    return CC_OK;
}

static CcGo attr_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, bool generic) {
    if (cc_tens_is(o)) return tensor_before(rec, act, o, name);
    if (!PyUnicode_Check(name) || (!generic && cc_dunder_reads(Py_TYPE(o))))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, cc_type_name(o));
    if (rec->of_class.n > 0 && written_elsewhere(rec, o, name))
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, PyUnicode_AsUTF8(name));
    if (cc_value_symbolic(rec, o)) {
        /* a.real depends on the number; a method is handled when it is called */
        PyObject *part = cc_type_lookup(Py_TYPE(o), name);
        return part == NULL || !Py_IS_TYPE(part, &PyGetSetDescr_Type) || cc_number_settle(rec, o, 0)
                   ? CC_OK
                   : cc_rec_break(rec, act, CC_R_DATA_SCALAR, PyUnicode_AsUTF8(name));
    }
    const CcOrigin origin = cc_value_origin(rec, o);
    /* its frames hold objects of this call; a traceback of this call may be passed on, as to __exit__ (3.13's
     * ExitStack) */
    if (PyExceptionInstance_Check(o) && PyUnicode_CompareWithASCIIString(name, "__traceback__") == 0)
        return origin == CC_O_SOURCE ? cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, "__traceback__") : CC_OK;
    if (origin == CC_O_UNKNOWN && !PyExceptionInstance_Check(o))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (Py_IS_TYPE(o, &PySuper_Type)) return look_super(rec, act, o, name);
    if (unseen_part(cc_type_lookup(Py_TYPE(o), name), "fget") != NULL)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    const bool locals = cc_known_is(o, CC_KNOWN_LOCAL) && PyUnicode_Compare(name, str_dict) == 0;
    if ((!known_getattro(Py_TYPE(o)) || locals) && !cc_value_const(o) && !cc_value_annotation(o) &&
        Py_TYPE(o)->tp_getattro != NULL)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, cc_type_name(o));
    if (cc_value_const(o) && !cc_python_class(Py_TYPE(o))) return CC_OK;
    if (PyMethod_Check(o)) return look_method(rec, act, o, name);
    if (PyType_Check(o)) return look_type(rec, act, o, name);
    return PyModule_Check(o) ? look_module(rec, act, o, name) : look_instance(rec, act, o, name, generic);
}

CcGo cc_attr_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    return attr_before(rec, act, o, name, false);
}

CcGo cc_attr_generic_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    return attr_before(rec, act, o, name, true);
}

CcGo cc_attr_computed(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *o = ev->in[0];
    PyTypeObject *t = Py_TYPE(o);
    /* an AttributeError would make other slots call __getattr__ */
    if (cc_tens_is(o) || t->tp_getattro != PyObject_GenericGetAttr || cc_value_unknown(rec, o)) return CC_OK;
    PyObject *get = unseen_part(cc_type_lookup(t, ev->name), "fget");
    if (get == NULL) return CC_OK;
    cc_attr_class_of(rec, o);
    (void)look_in_class(rec, act, t, ev->name); /* the property, which can't change */
    cc_value_const_source(rec, get);
    PyObject *f = cc_backcall_getter(rec, act, get);
    if (f == NULL && !PyInstanceMethod_Check(get)) f = cc_backcall_wrap(rec, get);
    if (f == NULL) return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(ev->name));
    return cc_backcall_perform(ev, f, ev->in, 1);
}

/* ------------------------------------------------------------------ after: provenance of the result */

static void learn_result(CcRec *rec, PyObject *v) {
    if (v == NULL || cc_value_origin(rec, v) != CC_O_UNKNOWN) return;
    /* A bound method, or an object that the lookup has just made: nothing else refers to it. */
    if (PyMethod_Check(v) || PyCFunction_Check(v) || Py_REFCNT(v) == 1) cc_value_fresh(rec, v);
}

static CcGo tensor_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (part_of_tensor(d)) {
        if (v != NULL && cc_torch_attr(o, name).cls == CC_T_HELD) {
            cc_value_gradient_read(rec, o);
            cc_value_read(rec, CC_SRC_MEMBER, cc_value_source(rec, o), d, 0, 0, v);
            return CC_OK;
        }
        if (v == NULL || !cc_tens_is(v)) {
            learn_result(rec, v);
            return CC_OK;
        }
        const CcRecFrame *f = cc_rec_frame(rec, act);
        /* a Python property has recorded its nodes */
        if (rec->trace->graph->node.n != f->call_nodes) return CC_OK;
        CcBound bound;
        const bool bound_too = cc_bind_attr(o, PyUnicode_AsUTF8(name), &bound) == 0;
        const CcCallSpec spec = {.form = CC_F_GETATTR,
                                 .target = name,
                                 .in = &o,
                                 .n = 1,
                                 .name = PyUnicode_AsUTF8(name),
                                 .bound = bound_too ? &bound : NULL,
                                 .safe = true};
        return cc_node_add(rec, act, &spec, v);
    }
    learn_result(rec, v);
    return CC_OK;
}

/* __name__, __bases__, __mro__, __abstractmethods__ ...: C getsets that read the class itself. Its __dict__ is a new
 * proxy for each read. */
static bool fact_of_class(PyObject *meta, PyObject *name) {
    return meta != NULL && (Py_IS_TYPE(meta, &PyGetSetDescr_Type) || Py_IS_TYPE(meta, &PyMemberDescr_Type)) &&
           PyDescr_TYPE(meta) == &PyType_Type && PyUnicode_Compare(name, str_dict) != 0;
}

static void type_after(CcRec *rec, PyObject *o, PyObject *name, PyObject *v) {
    PyObject *meta = cc_type_lookup(Py_TYPE(o), name);
    if (cc_mutable_class((PyTypeObject *)o) && fact_of_class(meta, name) && !answers_in_python(Py_TYPE(o)))
        cc_value_read(rec, CC_SRC_MEMBER, cc_value_const_source(rec, o), meta, 0, 0, v);
    if (v == NULL || cc_value_origin(rec, v) != CC_O_UNKNOWN) return;
    learn_result(rec, v);
    /* of C classes: the class owns it, so it is as constant as the class */
    if (cc_value_origin(rec, v) == CC_O_UNKNOWN && meta != NULL) cc_value_const_source(rec, v);
}

/* Parts of functions, partials and exceptions of this trace, which CPython makes together with them or on the first
 * read. */
static void learn_part(CcRec *rec, PyObject *o, PyObject *v) {
    const bool partial = cc_known_is(o, CC_KNOWN_PARTIAL);
    if (v == NULL || (!PyFunction_Check(o) && !PyExceptionInstance_Check(o) && !partial)) return;
    if (cc_value_origin(rec, v) != CC_O_UNKNOWN) return;
    if (PyFunction_Check(o) && v == ((PyFunctionObject *)o)->func_globals) cc_value_const_source(rec, v);
    else if (PyDict_CheckExact(v) || PyTuple_CheckExact(v)) cc_value_fresh(rec, v);
}

/* Learns a part that C code read of an object without running Python code. */
static void part_after(CcRec *rec, PyObject *o, PyObject *name, PyObject *d, PyObject *v) {
    const int source = cc_value_source(rec, o);
    if (PyUnicode_Compare(name, str_class) == 0) return;
    if (PyUnicode_Compare(name, str_dict) == 0) {
        if (v != NULL && source >= 0) cc_value_read(rec, CC_SRC_DICTOF, source, NULL, 0, 0, v);
        else cc_value_fresh(rec, v);
        return;
    }
    if (source < 0) learn_part(rec, o, v);
    if (source < 0 || Py_IS_TYPE(d, &PyMemberDescr_Type)) return; /* already guarded before */
    if (v == NULL) {                                              /* hasattr, whose result is not the value */
        v = Py_TYPE(d)->tp_descr_get(d, o, (PyObject *)Py_TYPE(o));
        if (v == NULL) cc_raised_clear();
        else cc_vec_push(&rec->keep, v);
    }
    cc_value_read(rec, CC_SRC_MEMBER, source, d, 0, 0, v);
}

static void instance_after(CcRec *rec, PyObject *o, PyObject *name, PyObject *v, bool generic) {
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (PyMethod_Check(o) && d == NULL) {
        instance_after(rec, PyMethod_GET_FUNCTION(o), name, v, generic);
        return;
    }
    const bool part =
        d != NULL && Py_TYPE(d)->tp_descr_set != NULL && !runs_python(d) && (generic || !answers_in_python(Py_TYPE(o)));
    if (part) part_after(rec, o, name, d, v);
    else if (v != NULL && v == d && cc_value_origin(rec, v) == CC_O_UNKNOWN) cc_value_const_source(rec, v);
    learn_result(rec, v);
}

static CcGo attr_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v, bool generic) {
    if (cc_tens_is(o)) return tensor_after(rec, act, o, name, v);
    if (cc_value_symbolic(rec, o)) cc_value_pin(rec, o);
    const bool module = PyModule_Check(o);
    if (module && v != NULL && PyModule_Check(v) && !PyDict_Contains(PyModule_GetDict(o), name))
        cc_name_submodule(rec, o, name);
    if (PyType_Check(o)) type_after(rec, o, name, v);
    else if (module || Py_IS_TYPE(o, &PySuper_Type)) learn_result(rec, v);
    else instance_after(rec, o, name, v, generic);
    if (v != NULL && PyTraceBack_Check(v)) cc_value_fresh(rec, v); /* breaks here if it can't be rebuilt */
    if (v != NULL && !PyExceptionInstance_Check(v) && cc_value_origin(rec, v) == CC_O_UNKNOWN)
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    return CC_OK;
}

CcGo cc_attr_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    return attr_after(rec, act, o, name, v, false);
}

CcGo cc_attr_generic_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    return attr_after(rec, act, o, name, v, true);
}

/* ------------------------------------------------------------------ stores */

/* A tensor that torch will accept as the gradient of o in each replay: their sizes don't vary. */
static bool may_be_gradient(CcRec *rec, PyObject *o, PyObject *v) {
    return v != NULL && cc_tens_is(v) && cc_tens_plain(v) && cc_node_nameable(rec, v, 1) && !cc_node_unsized(rec, v) &&
           !cc_sym_sized(rec, v) && !cc_sym_sized(rec, o);
}

/* p.grad = None, or a tensor: no node reads it, and results of earlier reads stay alive. */
static bool sets_gradient(CcRec *rec, PyObject *o, PyObject *name, PyObject *v) {
    return cc_tens_is(o) && cc_tens_plain(o) && PyUnicode_Check(name) &&
           PyUnicode_CompareWithASCIIString(name, "grad") == 0 && cc_value_source(rec, o) >= 0 && held_known(rec, o) &&
           (v == Py_None || may_be_gradient(rec, o, v));
}

static CcGo set_gradient(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    rec->read_grad = true; /* reading grad of a tensor that is not a leaf would warn */
    guard_type_attr(rec, Py_TYPE(o), name, d);
    cc_value_written(rec, CC_SRC_MEMBER, cc_value_source(rec, o), d, false);
    cc_value_gradient_set(rec, o);
    PyObject *const in[] = {o, v};
    return cc_node_effect(rec, act,
                          &(CcCallSpec){.form = CC_F_SETATTR, .target = name, .in = in, .n = 2, .name = "grad"}, NULL);
}

/* Reads a property of the tensor: a guard if it is as wanted. */
static bool guard_property(CcRec *rec, PyObject *o, const char *name, PyObject *wanted) {
    PyObject *v = PyObject_GetAttrString(o, name);
    const bool is = v == wanted;
    if (is) cc_value_read_member(rec, cc_value_source(rec, o), Py_TYPE(o), name, v);
    cc_raised_clear();
    Py_XDECREF(v);
    return is;
}

bool cc_attr_guard_leaf(CcRec *rec, const CcAct *act, PyObject *o) {
    if (!cc_tens_is(o) || !cc_tens_requires_grad(o) || cc_tens_parameter(o) || cc_value_source(rec, o) < 0) return true;
    const bool paused = cc_hook_pause(act->obs, true); /* torch-function modes see the reads */
    const bool is = guard_property(rec, o, "is_leaf", Py_True) && guard_property(rec, o, "_base", Py_None);
    cc_hook_pause(act->obs, paused);
    return is;
}

/* x.requires_grad = True, as x.requires_grad_() */
static bool asks_gradient(CcRec *rec, const CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    return v != NULL && PyBool_Check(v) && cc_tens_is(o) && cc_tens_plain(o) && PyUnicode_Check(name) &&
           PyUnicode_Compare(name, str_requires_grad) == 0 && cc_node_nameable(rec, o, 1) &&
           cc_attr_guard_leaf(rec, act, o);
}

static CcGo ask_gradient(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    PyObject *const in[] = {o, v};
    guard_type_attr(rec, Py_TYPE(o), name, cc_type_lookup(Py_TYPE(o), name));
    const CcCallSpec spec = {
        .form = CC_F_SETATTR, .target = name, .in = in, .n = 2, .name = "requires_grad", .flags = CC_N_WRITES};
    return cc_node_add(rec, act, &spec, NULL);
}

static bool describes(const PyObject *o) {
    return o != NULL && (Py_TYPE(o)->tp_descr_get != NULL || Py_TYPE(o)->tp_descr_set != NULL);
}

/* Cls.counter = v: replaces plain data by plain data, so attribute lookup stays the same. */
static bool plain_of_class(CcRec *rec, PyObject *o, PyObject *name, PyObject *v) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyTypeObject *t = (PyTypeObject *)o;
    return text != NULL && strncmp(text, "__", 2) != 0 && v != NULL && cc_python_class(t) &&
           Py_TYPE(o)->tp_setattro == PyType_Type.tp_setattro && cc_value_source(rec, o) >= 0 &&
           cc_type_lookup(Py_TYPE(o), name) == NULL && !describes(v) && !describes(cc_type_lookup(t, name));
}

/* One guard covers the first read and the first write of the attribute. */
static CcGo store_of_class(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    cc_value_written(rec, CC_SRC_TLOOK, cc_value_source(rec, o), name, false);
    cc_vec_push(&rec->keep, Py_NewRef(name));
    cc_vec_push(&rec->of_class, ((struct CcOfClass){(PyTypeObject *)o, name}));
    PyObject *const in[] = {o, v};
    const CcCallSpec spec = {.form = CC_F_SETATTR, .target = name, .in = in, .n = 2, .name = PyUnicode_AsUTF8(name)};
    return cc_node_effect(rec, act, &spec, NULL);
}

/* Guards how the class of o handles a store: a __setattr__ in Python, or a descriptor of that name. */
static void look_at_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v, bool generic) {
    PyTypeObject *t = Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (!generic) guard_special(rec, t, v != NULL ? str_setattr : str_delattr);
    if (PyUnicode_Check(name) && (generic || !stores_in_python(t, v == NULL))) (void)look_in_class(rec, act, t, name);
}

/* x.data = x changes nothing (module.to(device) where the module already is). */
static bool own_data(PyObject *o, PyObject *name, PyObject *v) {
    return o == v && cc_tens_is(o) && cc_tens_plain(o) && PyUnicode_Check(name) && cc_text_is(name, "data");
}

static CcGo store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    if (own_data(o, name, v)) return CC_OK;
    if (sets_gradient(rec, o, name, v) || asks_gradient(rec, act, o, name, v)) return CC_OK;
    if (cc_tens_is(o)) return cc_rec_break(rec, act, CC_R_TORCH_EFFECT, "an attribute of a tensor is set");
    const CcOrigin origin = cc_value_origin(rec, o);
    /* one that the trace has made is none of those that are matched by code */
    if (PyFunction_Check(o) && origin != CC_O_FRESH) cc_value_function_written(rec);
    if (PyExceptionInstance_Check(o) && origin != CC_O_SOURCE &&
        PyUnicode_CompareWithASCIIString(name, "__traceback__") == 0)
        return CC_OK; /* contextlib restores what throw() changed */
    if (origin == CC_O_UNKNOWN || origin == CC_O_EFFECT)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    const setattrofunc f = Py_TYPE(o)->tp_setattro;
    if (stores_in_python(Py_TYPE(o), v == NULL)) return CC_OK; /* recorded inside */
    if (f != PyObject_GenericSetAttr && f != slot_setattr && !PyType_Check(o) && !PyModule_Check(o) &&
        !cc_known_is(o, CC_KNOWN_LOCAL))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, cc_type_name(o));
    if (PyType_Check(o))
        return plain_of_class(rec, o, name, v) ? CC_OK
                                               : cc_rec_break(rec, act, CC_R_CLASS, ((PyTypeObject *)o)->tp_name);
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (unseen_part(d, v != NULL ? "fset" : "fdel") != NULL || cc_dunder_describes(d))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    if (d != NULL && Py_TYPE(d)->tp_descr_set != NULL && Py_TYPE(d) != &PyProperty_Type &&
        Py_TYPE(d) != &PyMemberDescr_Type && !cc_python_class(Py_TYPE(d)) && origin != CC_O_FRESH)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    return CC_OK;
}

/* What a generic store replaces. Borrowed; NULL: nothing. */
static PyObject *replaced(PyObject *o, PyObject *name) {
    if (cc_tens_is(o)) return NULL;
    if (PyType_Check(o)) return PyDict_GetItemWithError(cc_type_dict((PyTypeObject *)o), name);
    PyObject *d = cc_type_lookup(Py_TYPE(o), name), *old = NULL;
    if (d != NULL && Py_IS_TYPE(d, &PyMemberDescr_Type)) old = Py_TYPE(d)->tp_descr_get(d, o, (PyObject *)Py_TYPE(o));
    else if (d == NULL || Py_TYPE(d)->tp_descr_set == NULL) {
        PyObject *dict = PyModule_Check(o) ? PyModule_GetDict(o) : dict_of(o);
        return dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    }
    if (old == NULL) cc_raised_clear();
    Py_XDECREF(old); /* the slot holds it */
    return old;
}

CcGo cc_attr_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    const CcGo go = store_before(rec, act, o, name, v);
    if (go != CC_OK) return go;
    look_at_store(rec, act, o, name, v, false);
    return !stores_in_python(Py_TYPE(o), v == NULL) && cc_finalizers_replaces(rec, replaced(o, name), v)
               ? cc_rec_break(rec, act, CC_R_FINALISED, NULL)
               : CC_OK;
}

CcGo cc_attr_generic_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    if (cc_tens_is(o)) return cc_rec_break(rec, act, CC_R_TORCH_EFFECT, "setattr changes a tensor");
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (unseen_part(d, v != NULL ? "fset" : "fdel") != NULL || cc_dunder_describes(d))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, PyUnicode_AsUTF8(name));
    look_at_store(rec, act, o, name, v, true);
    return cc_finalizers_replaces(rec, replaced(o, name), v) ? cc_rec_break(rec, act, CC_R_FINALISED, NULL) : CC_OK;
}

/* A slot of __slots__ gives the object that was stored; a C class's member of type int or double makes a new one. */
static bool holds_objects(PyObject *d) { return ((PyMemberDescrObject *)d)->d_member->type == T_OBJECT_EX; }

/* A generic store into the instance has been performed (not a property's, not __setattr__ in Python). */
CcGo cc_attr_generic_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    if (PyType_Check(o)) return store_of_class(rec, act, o, name, v);
    if (own_data(o, name, v)) return CC_OK;
    if (cc_tens_is(o)) return PyBool_Check(v) ? ask_gradient(rec, act, o, name, v) : set_gradient(rec, act, o, name, v);
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (d != NULL &&
        (Py_TYPE(d) == &PyProperty_Type || (Py_TYPE(d)->tp_descr_set != NULL && cc_python_class(Py_TYPE(d)))))
        return CC_OK; /* its setter was recorded */
    const int source = cc_value_source(rec, o);
    if (source < 0) return CC_OK; /* fresh */
    PyObject *dict = PyModule_Check(o) ? PyModule_GetDict(o) : dict_of(o);
    if (d != NULL && Py_TYPE(d) == &PyMemberDescr_Type) {
        CcProv *p = cc_value_find(rec, o);
        cc_value_written(rec, CC_SRC_MEMBER, source, d, v == NULL);
        p->dirty = holds_objects(d) ? CC_MAX(p->dirty, CC_DIRTY_KEYS) : CC_DIRTY_ALL;
    } else if (dict != NULL) {
        const int ds = PyModule_Check(o) ? cc_value_const_source(rec, dict) : read_dict(rec, o, source, dict);
        cc_value_written(rec, CC_SRC_KEY, ds, name, v == NULL);
        CcProv *p = cc_value_find(rec, dict);
        if (p != NULL && p->origin == CC_O_SOURCE) p->dirty = CC_MAX(p->dirty, CC_DIRTY_KEYS);
    }
    cc_vec_push(&rec->written, source);
    PyObject *const in[] = {o, v};
    const CcCallSpec spec = {.form = v != NULL ? CC_F_SETATTR : CC_F_DELATTR,
                             .target = name,
                             .in = in,
                             .n = v != NULL ? 2 : 1,
                             .name = PyUnicode_AsUTF8(name)};
    return cc_node_effect(rec, act, &spec, NULL);
}

/* C code failed to delete an absent attribute. */
CcGo cc_attr_not_there(CcRec *rec, CcAct *act, PyObject *o, PyObject *name) {
    const CcProv *p = cc_value_find(rec, o);
    const int source = cc_value_source(rec, o);
    if (source < 0 || stores_in_python(Py_TYPE(o), true) || cc_tens_is(o)) return CC_OK;
    PyObject *d = cc_type_lookup(Py_TYPE(o), name);
    if (d == NULL || !Py_IS_TYPE(d, &PyMemberDescr_Type)) (void)look_in_dict(rec, act, o, source, name);
    else if (p != NULL && p->dirty == CC_DIRTY_ALL) return cc_rec_poison(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    else (void)look_in_slot(rec, act, o, source, d);
    return CC_OK;
}

CcGo cc_attr_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v) {
    return stores_in_python(Py_TYPE(o), v == NULL) ? CC_OK : cc_attr_generic_store(rec, act, o, name, v);
}
