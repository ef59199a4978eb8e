"""Values and contracts that every other part of Tugline shares. Nothing here does input or output."""
