"""Many runs: models on machines that differ in a few parameters, planned in several ways."""
