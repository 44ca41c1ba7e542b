"""Code generation of `embeddb emit`: an answer as C without dependencies on embeddb."""
