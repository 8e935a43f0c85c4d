/* Object internals that guards read: instance dicts, versions of dicts and types. */
#include "py_int.h"

PyObject *cc_obj_dict(PyObject *o)
{
    return cc_frame_instance_dict(o);
}

uint64_t cc_dict_version(PyObject *dict)
{
    return PyDict_Check(dict) ? cc_frame_dict_version(dict) : 0;
}

/* tp_version_tag is assigned by a lookup (Objects/typeobject.c _PyType_Lookup), as long as tags last. */
unsigned cc_type_version(PyTypeObject *type)
{
    static PyObject *probe;
    if (PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return type->tp_version_tag;
    if (!probe) probe = PyUnicode_InternFromString("__class__");
    if (!probe) {
        PyErr_Clear();
        return 0;
    }
    (void)_PyType_Lookup(type, probe);
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

PyObject *cc_type_lookup(PyTypeObject *type, PyObject *name)
{
    return _PyType_Lookup(type, name);
}
