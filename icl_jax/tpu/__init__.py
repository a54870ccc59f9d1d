"""What a step would cost on TPUs that are not there."""
