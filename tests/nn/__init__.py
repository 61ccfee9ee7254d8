"""What every module of megafuse.nn must do."""
