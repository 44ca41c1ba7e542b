"""Choice of matrices and configurations to spend measurements on."""
