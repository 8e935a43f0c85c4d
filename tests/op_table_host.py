"""More rows of the op table: ops that torch runs. They have no row in csrc/ir/ops.def; the tests check that calls are
recorded and replayed faithfully: factories, scans, linear algebra, special functions, windows, unusual signatures."""

import torch
from op_table import (
    CANCELS,
    FLOATS,
    INTO,
    INTS,
    NEAR,
    POOL,
    PRODUCT,
    SELF,
    SUMS,
    A,
    binary,
    cl,
    each,
    f32,
    f64,
    i64,
    inf,
    row,
    u8,
    unary,
)

F2 = FLOATS[:2]
FAR = {"dtypes": F2, "ulp": 4096, "norm": True}   # decompositions: the same call gives the same, but blocks may be cut otherwise


def square(m, n=4, batch=()):
    """Well-conditioned."""
    return m.x(*batch, n, n) + 3 * torch.eye(n, dtype=m.dtype)


def positive(m, n=4):
    a = m.x(n, n)
    return a @ a.T + n * torch.eye(n, dtype=m.dtype)


# ---- in place and aliases of what op_table.py has --------------------------------------------------------------------------
each("M:absolute_ M:negative_ M:sgn_ M:frac_ M:fix_", *SELF)
each("M:acos_ M:arccos_ M:asin_ M:arcsin_ M:acosh_ M:arccosh_ M:asinh_ M:arcsinh_ M:atan_ M:arctan_ M:atanh_ M:arctanh_ M:cos_ M:cosh_", *SELF, **NEAR)
each("M:sinh_ M:tan_ M:erfc_ M:exp2_ M:expm1_ M:log_ M:log2_ M:log10_ M:sinc_ M:deg2rad_ M:rad2deg_ M:logit_ M:lgamma_ M:i0_", *SELF, **NEAR)
each("F:acos_ F:asin_ F:atan_ F:cos_ F:cosh_ F:erfc_ F:exp2_ F:expm1_ F:log_ F:log2_ F:log10_ F:sinc_ F:sinh_ F:tan_ F:logit_ F:deg2rad_", lambda m: A(m.x(23)), lambda m: A(m.x(5, 7).t()), **NEAR)
each("F:negative_ F:frac_ F:fix_ F:zero_", lambda m: A(m.x(23)))
each("M:ne_ M:not_equal_ M:gt_ M:greater_ M:greater_equal_ M:le_ M:less_ M:less_equal_ M:multiply_ M:subtract_ M:logical_or_ M:logical_xor_", *INTO)
each("M:divide_ M:true_divide_ M:copysign_", *INTO, **NEAR)
each("M:hypot_ M:nextafter_ M:arctan2_ M:xlogy_ M:heaviside_ M:ldexp_", lambda m: A(m.x(23), m.x(23)), lambda m: A(m.x(3, 7), m.x(7)), **NEAR)
each("M:gcd_ M:lcm_ M:bitwise_left_shift_ M:bitwise_right_shift_", lambda m: A(m.n(23), m.n(23)), dtypes=INTS)
row("M:bitwise_not_", lambda m: A(m.w(23)), dtypes=INTS)
row("M:float_power_", lambda m: A(m.p(9), 2), lambda m: A(m.p(9), m.n(9)), dtypes=(f64, f32), **NEAR)
each("M:digamma_ M:erfinv_ M:mvlgamma_", lambda m: A(m.x(9).abs() + 2), lambda m: A(m.x(9).abs() + 2, 2), dtypes=F2, **NEAR)
row("M:polygamma_", lambda m: A(m.x(9).abs() + 1, 1), dtypes=F2, **NEAR)
row("M:igamma_ M:igammac_", lambda m: A(m.x(9).abs() + 1, m.x(9).abs() + 1), dtypes=F2, **NEAR)
row("M:addmv_", lambda m: A(m.x(4), m.x(4, 6), m.x(6)), **PRODUCT)
row("M:addr_", lambda m: A(m.x(4, 5), m.x(4), m.x(5)), **PRODUCT)
row("M:addbmm_", lambda m: A(m.x(4, 5), m.x(3, 4, 6), m.x(3, 6, 5)), **PRODUCT)
row("M:cumprod_", lambda m: A(m.x(4, 6), 1), **SUMS)
row("M:fill_diagonal_", lambda m: A(m.x(4, 6), 2), lambda m: A(m.x(7, 3), 1, True))
row("M:renorm_", lambda m: A(m.x(4, 6), 2, 0, 1.0), dtypes=F2, **SUMS)
row("M:put_", lambda m: A(m.x(4, 6), m.idx(24, 5), m.x(5)), dtypes=(f32, i64))
row("M:scatter_reduce_", *(lambda m, r=r: A(m.x(4, 6), 1, m.idx(6, 4, 3), m.x(4, 3), r) for r in ("sum", "prod", "amax", "mean")), **SUMS)
row("M:index_reduce_", lambda m: A(m.x(4, 6), 1, m.idx(6, 9), m.x(4, 9), "prod"), dtypes=F2, **SUMS)
row("M:swapdims_", lambda m: A(m.t(2, 3), 0, 1))
row("P:celu_ P:elu_ P:selu_ P:leaky_relu_ P:hardtanh_ F:celu_ F:selu_", lambda m: A(m.t(67)), dtypes=FLOATS, **NEAR)
row("P:threshold_ F:threshold_", lambda m: A(m.t(67), 0.5, 0.1), dtypes=FLOATS)
row("P:rrelu_ F:rrelu_", lambda m: A(m.t(67)), lambda m: A(m.t(67), 0.1, 0.3, True), dtypes=F2, random=True, ulp=1)
row("M:cauchy_ M:exponential_ M:log_normal_", lambda m: A(m.x(3, 4)), dtypes=F2, random=True)
row("M:geometric_", lambda m: A(m.x(3, 4), 0.3), dtypes=F2, random=True)

# ---- factories -------------------------------------------------------------------------------------------------------------
row("F:arange", lambda m: A(1, 5), lambda m: A(10, 2, -3), lambda m: A(0, 2, 0.1), lambda m: A(3.5), lambda m: A(end=4), lambda m: A(1, 4, dtype=f64), lambda m: A(-3, 3, 2, dtype=m.dtype), lambda m: A(5, 5), lambda m: A(5, 1), lambda m: A(0, 10, 0), ulp=1)
row("F:range", lambda m: A(1, 5), lambda m: A(0, 2, 0.5), dtypes=(f32,))
row("F:linspace", lambda m: A(0, 1, 1), lambda m: A(3, -3, 50), lambda m: A(0, 1, steps=0), lambda m: A(-1.5, 2.5, 8, dtype=m.dtype), lambda m: A(torch.tensor(0.0), 3, 4), lambda m: A(0, 1, -1), dtypes=FLOATS, **CANCELS)
row("F:eye", lambda m: A(0), lambda m: A(4, 0), lambda m: A(n=3, m=2), lambda m: A(3, dtype=m.dtype), lambda m: A(-1))
row("F:tril M:tril F:triu M:triu", lambda m: A(m.t(4, 6)), lambda m: A(m.t(2, 5, 4), 1), lambda m: A(m.t(6, 4).t(), -2), lambda m: A(m.t(4, 4), diagonal=9), lambda m: A(m.t(0, 4)), lambda m: A(m.t(2, 3, 4, 4)[:, 1:], -9), lambda m: A(m.t(4)))
row("F:triu_indices", lambda m: A(3, 4), lambda m: A(3, 3, 1), dtypes=(i64,))
row("F:scalar_tensor", lambda m: A(2.5), lambda m: A(2, dtype=m.dtype))
row("F:asarray", lambda m: A([1.0, 2.0]), lambda m: A(m.t(3)))
each("F:hann_window F:hamming_window F:blackman_window F:bartlett_window F:kaiser_window", lambda m: A(8), lambda m: A(5, False), dtypes=(f32,), ulp=64, norm=True)
row("F:complex F:polar", lambda m: A(m.x(4), m.x(4)), dtypes=F2)
row("F:vander", lambda m: A(m.x(4)), lambda m: A(m.x(4), 3, True), dtypes=FLOATS[:2] + (i64,), **NEAR)
row("F:normal", lambda m: A(m.x(5), m.x(5).abs()), lambda m: A(0.0, 1.0, (3,)), dtypes=(f32,), random=True)
row("F:poisson F:randint_like", lambda m: A(m.x(5).abs()), lambda m: A(m.x(5), 3), dtypes=(f64,), random=True)
row("F:binomial", lambda m: A(m.n(5), m.x(5).abs().clamp(max=1)), dtypes=F2, random=True)
row("P:gumbel_softmax", lambda m: A(m.x(3, 5)), lambda m: A(m.x(3, 5), 0.5, True), dtypes=F2, random=True, ulp=8)
row("P:feature_alpha_dropout P:dropout1d P:dropout3d", lambda m: A(m.x(2, 3, 4), 0.5, True), lambda m: A(m.x(2, 3, 4), 0.5, False), dtypes=F2, random=True)

# ---- shapes ----------------------------------------------------------------------------------------------------------------
each("F:atleast_1d F:atleast_2d F:atleast_3d", lambda m: A(m.t()), lambda m: A(m.t(3)), lambda m: A(m.t(2, 3), m.t()))
row("F:block_diag", lambda m: A(m.t(2, 3), m.t(1, 1)), lambda m: A(m.t(3)))
row("F:row_stack F:column_stack", lambda m: A([m.t(3), m.t(3)]), lambda m: A((m.t(2, 3), m.t(2, 3))))
row("FM:dsplit F:tensor_split", lambda m: A(m.t(2, 3, 4), 2), lambda m: A(m.t(2, 3, 4), (1, 2)))
row("FM:unsafe_split", lambda m: A(m.t(6), 2), lambda m: A(m.t(4, 6), 2, 1))
row("FM:unsafe_split_with_sizes", lambda m: A(m.t(6), (2, 4)))
row("F:combinations", lambda m: A(m.t(4)), lambda m: A(m.t(4), 3), dtypes=(f32, i64))
row("FM:flipud F:msort FM:diagflat", lambda m: A(m.x(4, 3)), lambda m: A(m.x(5)))
row("F:constant_pad_nd", lambda m: A(m.t(2, 3), (1, 2)), lambda m: A(m.t(2, 3), (1, 0, 0, 2), 7))
row("P:pad", *(lambda m, mode=mode: A(m.x(2, 3, 5, 6), (1, 2, 2, 1), mode) for mode in ("reflect", "replicate", "circular")), lambda m: A(m.x(2, 3, 5), (2, 0), "reflect"), lambda m: A(m.x(2, 3, 5), (7, 0), "reflect"), dtypes=FLOATS)
row("FM:as_strided_scatter", lambda m: A(m.t(6), m.t(2), (2,), (2,), 1))
row("FM:argwhere", lambda m: A(m.mask(3, 4).to(m.dtype)), breaks=True)
row("F:unique_consecutive M:unique_consecutive F:unique", lambda m: A(m.idx(3, 9).to(m.dtype)), dtypes=(i64, f32), breaks=True)
row("F:nonzero_static", lambda m: A(m.mask(3, 4), size=5), dtypes=(f32,))
row("M:new_empty", lambda m: A(m.t(3), (0, 2)))
row("M:sum_to_size", lambda m: A(m.x(3, 4), 1, 4), **SUMS)
row("FM:roll", lambda m: A(m.t(4, 6), 2), lambda m: A(m.t(4, 6), -1, 1), lambda m: A(m.t(4, 6), (1, -2), (0, 1)), lambda m: A(m.t(0, 3), 1, 0), lambda m: A(m.t(4), 1, 5))
row("FM:roll", lambda m: A(m.t(4, 26), 5, 1), lambda m: A(m.t(4, 6), -9, 0), lambda m: A(m.t(2, 5, 4, 3), (2, -3), (1, 2)), lambda m: A(cl(m.t(2, 5, 4, 3)), shifts=(1, 2, 3), dims=(1, 2, 3)), lambda m: A(m.t(6, 4).t(), 0, 0), lambda m: A(m.t(4, 33)[:, ::2], (3,), (-1,)), lambda m: A(m.t(4, 6), (1, 1), (0, 0)), lambda m: A(m.t(4, 6), (1, 1), 0), lambda m: A(m.t(4, 6), 1, 2), kernels=6)
row("N:pad", lambda m: A(m.t(2, 13), (1, 2)), lambda m: A(m.t(2, 3, 5), (1, 0, 0, 2), "constant", 7), lambda m: A(m.t(2, 3, 4, 5), (0, 1, 2, 3, 1, 0, 0, 2)), lambda m: A(cl(m.t(2, 3, 4, 5)), (1, 1, 1, 1), value=0), lambda m: A(m.t(5, 3).t(), (2, 0)), lambda m: A(m.t(3), (0, 0)), lambda m: A(m.x(3, 4), (1, 1), "constant", -inf), lambda m: A(m.t(3, 4), (-1, 1)), lambda m: A(m.t(3, 4), (1, 1), "constant", 0.5), lambda m: A(m.t(0, 4), (1, 1)), lambda m: A(m.t(3, 4), (1,)), kernels=6)
row("FM:flip", lambda m: A(m.t(4, 6), 0), lambda m: A(m.t(4, 6), (0, 1)), lambda m: A(m.t(4, 6).t(), [1]), lambda m: A(cl(m.t(2, 3, 4, 5)), -1, 1), lambda m: A(m.t(4, 33)[:, ::2], 1), lambda m: A(m.t()), lambda m: A(m.t(0, 3), 0), lambda m: A(m.t(4), 2), lambda m: A(m.t(4, 4), 0, 0))
row("M:repeat", lambda m: A(m.t(3), 2), lambda m: A(m.t(3), 2, 2), lambda m: A(m.t(2, 3), (1, 2)), lambda m: A(m.t(2, 3).t(), 3, 1), lambda m: A(m.t(2, 3), 0, 1), lambda m: A(m.t(), 3), lambda m: A(m.t(2, 3), 2), lambda m: A(m.t(2, 1).expand(2, 3), 1, 2, 1))
row("F:tile M:tile", lambda m: A(m.t(2, 3), (2,)), lambda m: A(m.t(3), (2, 2)), lambda m: A(m.t(2, 2, 2), (1, 3)))
row("FM:repeat_interleave", lambda m: A(m.t(2, 3), 2, 0), lambda m: A(m.t(2, 3), 3, dim=-1), lambda m: A(m.t(2, 3), 2), lambda m: A(m.t(2, 3), 0, 1), lambda m: A(m.t(3, 2).t(), 2, 1))

# ---- indexing --------------------------------------------------------------------------------------------------------------
row("FM:index_select", *(lambda m, d=d: A(m.t(4, 5, 6), d, m.idx(4, 7)) for d in (0, 1, -1)), lambda m: A(m.t(4, 6).t(), 0, m.idx(6, 3, dtype=torch.int32)), lambda m: A(m.t(4), 0, m.idx(4)), lambda m: A(m.t(4, 0), 0, m.idx(4, 2)),
    lambda m: A(m.t(4, 6), 0, m.idx(4, 2) + 9), lambda m: A(m.t(4, 6), 0, m.idx(4, 2) - 9), lambda m: A(m.t(4, 6), 0, m.idx(4, 2, 2)), lambda m: A(m.t(4, 6), 3, m.idx(4, 2)), lambda m: A(m.t(4, 33)[:, ::2], 1, m.idx(17, 40)))
row("FM:gather", lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 3)), lambda m: A(m.t(4, 6), 0, m.idx(4, 9, 6)), lambda m: A(m.t(4, 6), 0, m.idx(4, 2, 3)), lambda m: A(m.t(6, 4).t(), -1, m.idx(6, 4, 6)), lambda m: A(m.t(4), 0, m.idx(4, 9)), lambda m: A(m.t(), 0, m.idx(1)),
    lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 3) + 6), lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 3) - 6), lambda m: A(m.t(4, 6), 1, m.idx(6, 5, 3)), lambda m: A(m.t(4, 6), 1, m.idx(6, 0, 3)))
row("F:embedding", lambda m: A(m.x(5, 7), m.idx(5, 2, 3)), lambda m: A(m.x(5, 7), m.idx(5, 4, dtype=torch.int32), 2), lambda m: A(m.x(7, 5).t(), m.idx(5, 3)), lambda m: A(m.x(5, 7), m.idx(5)), lambda m: A(m.x(5, 7), m.idx(5, 3) - 5), lambda m: A(m.x(5, 7), m.idx(5, 0)))
row("X:getitem", *(lambda m, s=s: A(m.t(5, 6, 7), s(m)) for s in (
    lambda m: m.idx(5, 3), lambda m: m.idx(5, 2, 3) - 5, lambda m: (slice(None), m.idx(6, 4)), lambda m: (..., m.idx(7, 2, 2)), lambda m: (slice(None), m.idx(6, 4), slice(None)), lambda m: m.idx(5, 3, dtype=torch.int32),
    lambda m: (m.idx(5, 3), slice(1, 4)), lambda m: (None, m.idx(5, 3)), lambda m: (0, m.idx(6, 2)), lambda m: (m.idx(5, 3), m.idx(6, 3)), lambda m: (m.idx(5, 3, 1), slice(None), m.idx(7, 1, 2)), lambda m: m.idx(5, 0), lambda m: m.idx(5), lambda m: m.idx(5, 3) + 5,
    lambda m: (m.idx(5, 3), ..., m.idx(7, 3)), lambda m: [[0, 1], [2, 3]], lambda m: (..., [0, 2]), lambda m: m.idx(5, 3, dtype=u8))), breaks=True)
row("X:getitem", *(lambda m, s=s: A(m.t(5, 6, 7), s(m)) for s in (
    lambda m: (m.idx(5, 3), m.idx(6, 3) - 6), lambda m: (m.idx(5, 3, 1), m.idx(6, 4)), lambda m: (..., m.idx(6, 2, 3), m.idx(7, 3, dtype=torch.int32)), lambda m: (slice(None), m.idx(6, 40), m.idx(7, 40)), lambda m: (m.idx(5, 3), m.idx(6)),
    lambda m: (m.idx(5, 3), m.idx(6, 3), slice(None)), lambda m: (m.idx(5, 3), m.idx(6, 3), m.idx(7, 3)), lambda m: (m.idx(5, 3), m.idx(6, 3) + 6), lambda m: (m.idx(5, 3), m.idx(6, 4)))))
row("FM:take", lambda m: A(m.t(4, 6), m.idx(24, 5)), lambda m: A(m.t(4, 6), m.idx(24, 2, 3) - 24), lambda m: A(m.t(4, 6), m.idx(24, 5) + 24))
row("FM:put", lambda m: A(m.x(24), m.idx(24, 5), m.x(5)), dtypes=F2)
row("FM:index_reduce", lambda m: A(m.x(4, 6), 1, m.idx(6, 9), m.x(4, 9), "amax"), dtypes=F2)
row("F:segment_reduce", lambda m: A(m.x(6), "sum", lengths=torch.tensor([2, 4])), dtypes=F2, **SUMS)

# ---- reductions, scans, statistics -------------------------------------------------------------------------------------------
row("FM:argmax FM:argmin", lambda m: A(m.t(3, 25), 1, True), lambda m: A(m.t(5, 33).t(), -1), lambda m: A(m.t(40, 130), 0), lambda m: A(m.t(4, 33)[:, 1::2], 1), lambda m: A(cl(m.t(2, 5, 3, 4))), lambda m: A(m.t(2, 5, 3, 4), 1), lambda m: A(m.t(3, 1, 5).expand(3, 4, 5), 1), lambda m: A(m.t(0, 3), 1), lambda m: A(m.t(0)), lambda m: A(m.t()))
row("FM:cumsum FM:cumprod FM:logcumsumexp FM:cummax FM:cummin", lambda m: A(m.x(4, 6), 0), lambda m: A(m.x(4, 6).t(), -1), lambda m: A(m.x(5), 0), lambda m: A(m.x(), 0), dtypes=FLOATS, **SUMS)
row("FM:diff", lambda m: A(m.x(4, 6)), lambda m: A(m.x(4, 6), 2, 0), lambda m: A(m.x(4), prepend=m.x(2)))
row("F:gradient", lambda m: A(m.x(6)), lambda m: A(m.x(4, 6), dim=1), dtypes=F2)
row("F:trapz F:trapezoid F:cumulative_trapezoid", lambda m: A(m.x(6)), lambda m: A(m.x(3, 6), dx=0.5), lambda m: A(m.x(6), m.x(6)), dtypes=F2, **SUMS)
row("FM:mode", lambda m: A(m.idx(3, 3, 9).to(m.dtype)), lambda m: A(m.idx(3, 9).to(m.dtype), 0, True))
row("FM:nanquantile", lambda m: A(m.x(9), 0.3), lambda m: A(m.x(3, 9), torch.tensor([0.1, 0.9], dtype=m.dtype), 1), dtypes=F2, **SUMS)
row("FM:corrcoef FM:cov", lambda m: A(m.x(3, 9)), dtypes=F2, **SUMS)
row("F:histogram", lambda m: A(m.x(9), 4, range=(-1.0, 1.0)), dtypes=F2)
row("FM:renorm", lambda m: A(m.x(4, 6), 2, 0, 1.0), dtypes=F2, **SUMS)
row("F:frobenius_norm F:nuclear_norm", lambda m: A(m.x(4, 6), (0, 1)), dtypes=F2, **SUMS)
row("F:norm_except_dim", lambda m: A(m.x(4, 6), 2, 0), dtypes=F2, **SUMS)
row("F:pdist P:pdist", lambda m: A(m.x(4, 6)), lambda m: A(m.x(4, 6), 1.0), dtypes=F2, **SUMS)
row("FM:std FM:var", lambda m: A(m.x(3, 9), correction=2, dim=1), lambda m: A(m.x(3, 9), 0, True, True), lambda m: A(m.x(9), False), lambda m: A(m.x(3, 9), (0, 1)), lambda m: A(m.x(1)), dtypes=FLOATS, ulp=64, norm=True)
row("FM:sum FM:prod", lambda m: A(m.x(3, 9), dtype=f64), lambda m: A(m.x(3, 9), 1, dtype=f32), lambda m: A(m.x(3, 9), dim=0, keepdim=True), **SUMS)
row("L:vector_norm", *(lambda m, o=o: A(m.x(4, 9), o, dim=1) for o in (0, 1, 2, 3, 0.5, inf, -inf)), lambda m: A(m.x(4, 9), 2, (0, 1), True), lambda m: A(m.x(0, 3), 2, 1), dtypes=F2, **SUMS)
row("L:matrix_norm", *(lambda m, o=o: A(m.x(4, 5), o) for o in ("fro", "nuc", 1, -1, inf, 2)), **FAR)

# ---- linear algebra ----------------------------------------------------------------------------------------------------------
each("L:inv L:det L:slogdet L:matrix_exp L:pinv L:lu L:lu_factor L:svdvals L:eigvals L:cond F:inverse F:det F:logdet F:slogdet F:matrix_exp F:pinverse M:inverse M:det", lambda m: A(square(m)), lambda m: A(square(m, 3, (2,))), **FAR)
each("L:cholesky L:eigvalsh F:cholesky_inverse", lambda m: A(positive(m)), **FAR)
each("L:qr L:matrix_rank F:geqrf", lambda m: A(m.x(5, 3)), **FAR)
if torch.__version__ < (2, 14):  # later ones raise in any case
    each("F:cholesky M:cholesky", lambda m: A(positive(m)), **FAR)
    each("F:qr", lambda m: A(m.x(5, 3)), **FAR)
row("L:solve", lambda m: A(square(m), m.x(4, 2)), lambda m: A(square(m), m.x(4)), **FAR)
row("L:solve_triangular", lambda m: A(square(m).triu(), m.x(4, 2), upper=True), **FAR)
row("L:lstsq", lambda m: A(m.x(5, 3), m.x(5, 2)), dtypes=F2, ulp=4096, norm=True, breaks=True)
row("F:cholesky_solve", lambda m: A(m.x(4, 2), torch.linalg.cholesky(positive(m))), **FAR)
row("F:triangular_solve", lambda m: A(m.x(4, 2), square(m).triu()), **FAR)
row("L:matrix_power F:matrix_power", lambda m: A(square(m), 3), lambda m: A(square(m), -1), **FAR)
row("L:cross F:cross", lambda m: A(m.x(4, 3), m.x(4, 3)), lambda m: A(m.x(3, 4), m.x(3, 4), dim=0), dtypes=FLOATS, ulp=16, norm=True)
row("L:vander L:householder_product", lambda m: A(m.x(4)), lambda m: A(m.x(4, 3), m.x(3)), **FAR)
row("FM:addr", lambda m: A(m.x(4, 5), m.x(4), m.x(5)), lambda m: A(m.x(5), m.x(4), m.x(5), beta=0.5, alpha=2), **PRODUCT)
row("F:chain_matmul", lambda m: A(m.x(2, 3), m.x(3, 4), m.x(4, 2)), dtypes=F2, **SUMS)
row("F:lstm_cell", lambda m: A(m.x(2, 3), (m.x(2, 4), m.x(2, 4)), m.x(16, 3), m.x(16, 4), m.x(16), m.x(16)), dtypes=F2, ulp=64, norm=True)
row("F:gru_cell", lambda m: A(m.x(2, 3), m.x(2, 4), m.x(12, 3), m.x(12, 4), m.x(12), m.x(12)), dtypes=F2, ulp=64, norm=True)
row("F:rnn_tanh_cell F:rnn_relu_cell", lambda m: A(m.x(2, 3), m.x(2, 4), m.x(4, 3), m.x(4, 4), m.x(4), m.x(4)), dtypes=F2, ulp=64, norm=True)
row("F:stft", lambda m: A(m.x(64), 16, return_complex=True, window=torch.ones(16, dtype=m.dtype)), dtypes=F2, ulp=64, norm=True)

# ---- special functions -------------------------------------------------------------------------------------------------------
each("S:erfcx S:i0e S:i1 S:i1e S:ndtr S:log_ndtr S:bessel_j0 S:bessel_j1 S:gammaln S:psi S:modified_bessel_i0 S:spherical_bessel_j0", lambda m: A(m.x(23).abs() + 0.5), lambda m: A(m.x(5, 7).t().abs()), dtypes=F2, **NEAR)
row("S:ndtri S:airy_ai", lambda m: A(m.x(23).abs().clamp(0.1, 0.9)), dtypes=F2, **NEAR)
row("S:zeta", lambda m: A(m.x(9).abs() + 1.5, m.x(9).abs() + 1), dtypes=F2, **NEAR)
row("S:polygamma F:polygamma", lambda m: A(2, m.x(9).abs() + 1), dtypes=F2, **NEAR)
row("S:gammainc S:gammaincc F:igamma F:igammac", lambda m: A(m.x(9).abs() + 1, m.x(9).abs() + 1), dtypes=F2, **NEAR)
row("S:chebyshev_polynomial_t S:hermite_polynomial_h S:laguerre_polynomial_l S:legendre_polynomial_p", lambda m: A(m.x(9).clamp(-1, 1), 3), dtypes=F2, **NEAR)
row("F:mvlgamma M:mvlgamma S:multigammaln", lambda m: A(m.x(9).abs() + 3, 2), dtypes=F2, **NEAR)
row("FM:frexp", *unary("x")[:3], dtypes=FLOATS)
row("FM:angle", *unary("x")[:3])
row("FM:true_divide FM:float_power", *binary("t", "d", numbers=False)[:3], **NEAR)

# ---- layers ------------------------------------------------------------------------------------------------------------------
row("P:adaptive_max_pool3d", lambda m: A(m.x(1, 2, 4, 4, 4), 2), dtypes=F2)
row("P:fractional_max_pool2d", lambda m: A(m.x(1, 2, 6, 6), 2, (3, 3), _random_samples=torch.full((1, 2, 2), 0.3, dtype=m.dtype)), dtypes=F2)
row("P:lp_pool1d", lambda m: A(m.x(2, 4, 8).abs(), 2, 2), dtypes=F2, **SUMS)
row("P:max_pool2d_with_indices P:max_pool1d_with_indices", lambda m: A(m.x(2, 4, 8), 2), dtypes=F2)
row("P:max_unpool2d", lambda m: A(*torch.nn.functional.max_pool2d(m.x(1, 2, 4, 4), 2, return_indices=True), 2), dtypes=F2)
row("P:interpolate", *(lambda m, k=k: A(m.x(2, 3, 6, 4), **k) for k in ({"scale_factor": 2}, {"scale_factor": (2, 3)}, {"size": (12, 16)}, {"size": (6, 4)}, {"size": (3, 2)}, {"scale_factor": 1.5}, {"scale_factor": 0.5}, {"scale_factor": 2, "recompute_scale_factor": True},
    {"scale_factor": 2, "mode": "nearest-exact"}, {"scale_factor": 5}, {"size": 12, "mode": "area"})), lambda m: A(cl(m.x(2, 3, 6, 4)), scale_factor=4), lambda m: A(m.x(2, 3, 5), scale_factor=3), lambda m: A(m.x(1, 2, 2, 3, 4), scale_factor=2), **POOL)
row("P:upsample_nearest P:upsample_bilinear", lambda m: A(m.x(1, 3, 5, 4), scale_factor=2), **POOL)
row("F:group_norm P:group_norm", lambda m: A(m.x(3, 6), 2), lambda m: A(m.x(2, 6, 4, 3), 3, m.x(6)), lambda m: A(m.x(2, 6, 4, 3), 3, None, m.x(6)), lambda m: A(m.x(1, 6, 1, 1), 6), lambda m: A(m.x(2, 6, 2, 3, 4), 2, m.x(6), m.x(6)), lambda m: A(m.x(2, 12, 9)[:, ::2], 3, m.x(6), m.x(6)),
    lambda m: A(m.x(2, 6, 4), 4), lambda m: A(m.x(0, 6, 4), 2), lambda m: A(m.x(2, 6, 40, 50), 2, m.x(6), m.x(6)), lambda m: A(m.x(2, 6, 4), 2, m.x(6).to(f32), m.x(6).to(f32)), dtypes=FLOATS, ulp=64, norm=True)
row("P:batch_norm", lambda m: A(m.x(4, 5, 3), None, None, m.x(5), m.x(5), True), lambda m: A(m.x(4, 5), m.x(5), m.x(5).abs(), None, None, True), dtypes=F2, ulp=64, norm=True)
row("P:multi_head_attention_forward", lambda m: A(m.x(3, 2, 8), m.x(3, 2, 8), m.x(3, 2, 8), 8, 2, m.x(24, 8), m.x(24), None, None, False, 0.0, m.x(8, 8), m.x(8)), dtypes=F2, ulp=256, norm=True)
row("F:conv_tbc P:conv_tbc", lambda m: A(m.x(5, 2, 3), m.x(2, 3, 4), m.x(4)), dtypes=F2, **SUMS)
row("P:ctc_loss", lambda m: A(m.x(6, 2, 5).log_softmax(2), torch.tensor([[1, 2], [3, 4]]), torch.tensor([6, 6]), torch.tensor([2, 2])), dtypes=F2, **SUMS)
row("P:multilabel_margin_loss", lambda m: A(m.x(2, 4), torch.tensor([[1, 0, -1, 2], [3, -1, 0, 0]])), dtypes=F2, **SUMS)
row("P:triplet_margin_with_distance_loss", lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4, 9)), dtypes=F2, **SUMS)
row("P:binary_cross_entropy", lambda m: A(m.x(4, 9).sigmoid(), m.mask(4, 9).to(m.dtype), m.x(9).abs()), dtypes=F2, **SUMS)
row("P:binary_cross_entropy_with_logits", lambda m: A(m.x(4, 9), m.mask(4, 9).to(m.dtype), weight=m.x(9).abs()), lambda m: A(m.x(4, 9), m.mask(4, 9).to(m.dtype), reduction="sum"), lambda m: A(m.x(4, 9) * 50, m.mask(4, 9).to(m.dtype)), dtypes=FLOATS, ulp=32, norm=True)
row("P:cross_entropy", lambda m: A(m.x(6, 9), torch.tensor([1, -100, 3, 8, -100, 0])), lambda m: A(m.x(9), torch.tensor(3)), lambda m: A(m.x(2, 9, 3, 4), m.idx(9, 2, 3, 4), reduction="none"), dtypes=F2, ulp=32, norm=True)

# ---- operators of Python -------------------------------------------------------------------------------------------------------
row("B:abs O:abs O:neg O:pos", lambda m: A(m.t(67)), lambda m: A(m.t(5, 7).t()))
row("O:pow O:truediv", lambda m: A(m.p(9), 2), lambda m: A(2.5, m.d(9)), ulp=8)
row("O:imatmul", lambda m: A(m.x(4, 4), m.x(4, 4)), **PRODUCT)
row("O:ilshift O:irshift", lambda m: A(m.n(9), m.n(9)), lambda m: A(m.n(9), 2), dtypes=INTS)
row("O:and_ O:or_ O:xor", lambda m: A(m.w(9), m.w(9)), lambda m: A(m.w(9), 1), dtypes=INTS)
