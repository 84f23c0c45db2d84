"""What each framework does and refuses, by release. Beside render/ and verify/ the only room where its name decides."""
