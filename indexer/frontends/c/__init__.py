"""C between `#pragma scop` and `#pragma endscop`, read without a preprocessor or compiler."""
