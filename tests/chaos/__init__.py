"""What is killed, cut, paused or filled up on purpose: nothing that was accepted may be lost."""
