"""HOW an array library looks and differentiates. Importing this imports none of them."""
