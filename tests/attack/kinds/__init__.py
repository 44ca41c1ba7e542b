"""Kinds of input, a module each: `seeds`, `mutate`, `prepare`, `feed` (see `attack.case.Kind`)."""
