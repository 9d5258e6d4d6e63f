"""Features of cells, and builders of them for continuous states: see :mod:`lingendice.model.features`."""

from lingendice.model.features import (
    FeatureMap,
    FittedFeatures,
    MatrixFeatures,
    Tabular,
    nystroem,
    one_hot,
    random_fourier,
    rbf,
    tile_coding,
)

__all__ = [
    "FeatureMap",
    "FittedFeatures",
    "MatrixFeatures",
    "Tabular",
    "nystroem",
    "one_hot",
    "random_fourier",
    "rbf",
    "tile_coding",
]
