"""Slices of TPUs as clouds sell them: their names, and how their chips lie."""

from icl_jax.tpu.compile import num_chips

# A v4 or v5p is counted by its cores, two of each chip; a v5e or v6e by its chips.
_SHAPES = {
    ("v4", "v5p"): {
        8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8",
    },
    ("v5e", "v6e"): {
        4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16",
    },
}  # fmt: skip

SLICES: dict[str, str] = {  # v5e-16 -> v5e:4x4, as `compile_for_tpu` takes it; generation by age
    f"{generation}-{count}": f"{generation}:{shape}"
    for generation in ("v4", "v5e", "v5p", "v6e")
    for generations, shapes in _SHAPES.items()
    if generation in generations
    for count, shape in shapes.items()
}
ONE_CHIP = {"v4": "v4:1x1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1"}


def generation_of(name: str) -> str:
    """v5e, of the slice v5e-16 or the topology v5e:4x4."""
    return name.replace(":", "-").partition("-")[0]


def slice_of(generation: str, chips: int) -> str:
    """The slice that has so many chips."""
    return next(
        name
        for name, topology in SLICES.items()
        if generation_of(name) == generation and num_chips(topology) == chips
    )
