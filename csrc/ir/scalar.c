/* scalar: the table of scalar primitives. */
#include "ir.h"

static const CcScalarInfo TABLE[] = {
#define CC_SCALAR(id, arity, kind, f, s, u, ...) {#id, arity, #kind[0], {f, s, u}},
#include "scalar.def"
#undef CC_SCALAR
};

const CcScalarInfo *cc_scalar_info(CcScalarId id) {
    CC_ASSERT((unsigned)id < CC_S_COUNT);
    return &TABLE[id];
}

CcScalarId cc_scalar_find(const char *name, int n) {
    for (int i = 0; i < CC_S_COUNT; i++)
        if (strncmp(TABLE[i].name, name, (size_t)n) == 0 && TABLE[i].name[n] == 0) return (CcScalarId)i;
    return CC_S_COUNT;
}

CcScalarId cc_scalar_combine(CcScalarId fold) {
    const char *const *lower = cc_scalar_info(fold)->lower, *name = *lower[1] ? lower[1] : lower[0];
    return cc_scalar_find(name, (int)strlen(name));
}
