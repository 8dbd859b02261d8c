module fleetwright.io/shape

go 1.24
