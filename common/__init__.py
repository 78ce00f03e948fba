"""What every part uses: errors, options, JSON files, locks, machine, progress."""
