"""The numbers of the README, each measured beside what it is compared with: `make bench`."""
