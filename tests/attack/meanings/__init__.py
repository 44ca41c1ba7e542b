"""What is drawn, changed and compared by `attack.meaning`, a module for each kind of input."""
