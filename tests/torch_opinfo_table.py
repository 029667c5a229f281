"""What of torch's own operator samples does not pass, and why (see test_torch_opinfo). Reasons are
looked for in the order in which they stand here."""

from __future__ import annotations

TORCH = "2.13"
"""The version of torch that the lists are of."""

REFUSED: dict[str, str] = {
    "spyrec has no conversion for it": """
    _batch_norm_with_update _chunk_cat _native_batch_norm_legit _segment_reduce.lengths
    _segment_reduce.offsets _softmax_backward_data _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _upsample_bilinear2d_aa acos angle as_strided_copy
    as_strided_scatter asin atan atan2 bitwise_left_shift bitwise_right_shift block_diag
    cartesian_prod cdist cholesky cholesky_inverse cholesky_solve conj_physical copysign cross
    cummax cummin cumprod cumulative_trapezoid diag diagflat diagonal_scatter digamma dist erfinv
    fft.fftshift fft.hfft fft.hfft2 fft.hfftn fft.ifftshift fft.irfft fft.irfft2 fft.irfftn
    float_power frexp gcd geqrf gradient grid_sampler_2d grid_sampler_3d hash_tensor
    histogram histogramdd i0 igamma igammac index_reduce.amax index_reduce.amin index_reduce.mean
    index_reduce.prod isreal kthvalue lcm ldexp lgamma linalg.cholesky linalg.cholesky_ex
    linalg.cond linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh
    linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex
    linalg.ldl_solve linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve
    linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_rank.hermitian
    linalg.norm linalg.norm.subgradients_at_zero linalg.pinv linalg.pinv.hermitian
    linalg.pinv.singular linalg.qr linalg.slogdet linalg.solve linalg.solve_ex
    linalg.solve_triangular linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve
    linalg.vander logaddexp2 logcumsumexp logdet logspace logspace.tensor_overload lu lu_solve
    lu_unpack masked.cumprod masked.median masked_scatter matrix_exp median mode
    mvlgamma.mvlgamma_p_1 mvlgamma.mvlgamma_p_3 mvlgamma.mvlgamma_p_5 nanmedian nanquantile
    native_batch_norm native_dropout_backward nextafter nn.functional.bilinear
    nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
    nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.embedding
    nn.functional.embedding_bag nn.functional.grid_sample nn.functional.hinge_embedding_loss
    nn.functional.huber_loss nn.functional.interpolate.nearest-exact nn.functional.kl_div
    nn.functional.l1_loss nn.functional.linear_cross_entropy
    nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
    nn.functional.margin_ranking_loss nn.functional.max_pool1d nn.functional.max_unpool1d
    nn.functional.max_unpool1d.grad nn.functional.max_unpool2d nn.functional.max_unpool2d.grad
    nn.functional.max_unpool3d nn.functional.max_unpool3d.grad nn.functional.mse_loss
    nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss nn.functional.nll_loss
    nn.functional.pdist nn.functional.poisson_nll_loss nn.functional.rrelu
    nn.functional.smooth_l1_loss nn.functional.soft_margin_loss nn.functional.triplet_margin_loss
    nn.functional.unfold nonzero_static norm.nuc ormqr pinverse polygamma.polygamma_n_0
    polygamma.polygamma_n_1 polygamma.polygamma_n_2 polygamma.polygamma_n_3
    polygamma.polygamma_n_4 put qr quantile renorm resize_ resize_as_ searchsorted
    signal.windows.kaiser signbit sinc special.airy_ai special.bessel_j0 special.bessel_j1
    special.bessel_y0 special.bessel_y1 special.chebyshev_polynomial_t
    special.chebyshev_polynomial_u special.chebyshev_polynomial_v special.chebyshev_polynomial_w
    special.entr special.erfcx special.hermite_polynomial_h special.hermite_polynomial_he
    special.i0e special.i1 special.i1e special.laguerre_polynomial_l special.legendre_polynomial_p
    special.log_ndtr special.modified_bessel_i0 special.modified_bessel_i1
    special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr special.ndtri
    special.polygamma.special_polygamma_n_0 special.scaled_modified_bessel_k0
    special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t
    special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v
    special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0 special.xlog1py
    special.zeta sum_to_size svd trapezoid trapz triangular_solve
    """,
    "is only known at run time": """
    argwhere bincount combinations index_put masked_select nonzero repeat_interleave tensor_split
    unique unique_consecutive
    """,
    "is computed at run time": """
    item linspace.tensor_overload
    """,
    "complex(32|64|128)": """
    cdouble cfloat chalf complex fft.fft fft.fft2 fft.fftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft
    fft.ihfft2 fft.ihfftn fft.rfft fft.rfft2 fft.rfftn linalg.eig linalg.eigvals polar stft
    view_as_complex
    """,
    "float64": """
    double log_softmax.with_dtype nn.functional.softmin.with_dtype softmax.with_dtype to
    """,
    "sparse tensor": """
    sparse.mm.reduce sparse.sampled_addmm to_sparse
    """,
    "it draws random numbers": """
    bernoulli cauchy exponential geometric log_normal multinomial
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d normal normal.in_place
    normal.number_mean pca_lowrank rand_like randint randint_like randn randn_like svd_lowrank
    uniform
    """,
    "it is in training mode": """
    nn.functional.alpha_dropout nn.functional.batch_norm nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
    """,
    "it drops elements at random": """
    nn.functional.scaled_dot_product_attention
    """,
    "it picks elements by where they lie in memory": """
    as_strided as_strided.partial_views
    """,
    "it works on the bits of": """
    __rand__ __ror__ __rxor__ bitwise_and bitwise_not bitwise_or bitwise_xor
    """,
    "its windows from": """
    nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d
    nn.functional.interpolate.area
    """,
    "its divisor_override is set": """
    nn.functional.avg_pool2d nn.functional.avg_pool3d
    """,
    r"it takes the \S+-norm": """
    linalg.vector_norm nn.functional.normalize nn.functional.pairwise_distance norm
    """,
    "it takes the variance of": """
    std.unbiased std_mean.unbiased var.unbiased var_mean.unbiased
    """,
    "it combines what it writes by": """
    scatter_reduce.amax scatter_reduce.amin scatter_reduce.mean scatter_reduce.prod
    scatter_reduce.sum
    """,
    "only the first result can be used": """
    max_pool2d_with_indices_backward native_group_norm native_layer_norm
    nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool3d nn.functional.max_pool2d
    nn.functional.max_pool3d
    """,
    "torch cannot write the exported program as data": """
    broadcast_shapes
    """,
    "returns no tensor": """
    broadcast_shapes
    """,
    "expected .* of float type, got": """
    nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
    nn.functional.local_response_norm
    """,
    "is malformed": """
    addr heaviside index_add kron nn.functional.pad.replicate_negative prod
    """,
}
"""What a sentence says -> the operators of which some sample is refused with it."""

UNDEFINED = """
    __rpow__/int64 argsort/bool empty empty_like empty_permuted empty_strided item/bool new_empty
    new_empty_strided sort/bool topk/int64
"""
"""Results that cannot be compared, of all element types or of one: of any content, the order of
equal elements, whole numbers to negative powers, no tensor."""

DEVICE = """
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d
"""
"""Imported, but the device has no form: convolutions with weights that are computed at run time."""
