"""Which matrices and configurations to spend measurements on."""
