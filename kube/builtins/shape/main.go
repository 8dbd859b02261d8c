// Writes src/defaults/shape.txt: how Go's JSON encoder shows every API type of Kubernetes, read from the json tags.
//
//	go run . "$(go env GOMODCACHE)" v0.37.1 > ../src/defaults/shape.txt
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
)

// The packages that are read, by the short name of their group.
var packages = map[string]string{
	"apiextensions":  "apiextensions-apiserver/pkg/apis/apiextensions/v1",
	"apps":           "api/apps/v1",
	"authentication": "api/authentication/v1",
	"authorization":  "api/authorization/v1",
	"autoscaling":    "api/autoscaling/v1",
	"batch":          "api/batch/v1",
	"certificates":   "api/certificates/v1",
	"coordination":   "api/coordination/v1",
	"core":           "api/core/v1",
	"discovery":      "api/discovery/v1",
	"events":         "api/events/v1",
	"meta":           "apimachinery/pkg/apis/meta/v1",
	"networking":     "api/networking/v1",
	"policy":         "api/policy/v1",
	"rbac":           "api/rbac/v1",
	"scheduling":     "api/scheduling/v1",
	"storage":        "api/storage/v1",
}

// The kinds from which types are followed.
var roots = strings.Fields(`
core.Pod core.Namespace core.Node core.Service core.Endpoints core.ConfigMap core.Secret core.ServiceAccount core.Event core.ResourceQuota
core.PersistentVolume core.PersistentVolumeClaim core.ReplicationController core.PodTemplate core.Binding
apps.Deployment apps.ReplicaSet apps.StatefulSet apps.DaemonSet apps.ControllerRevision batch.Job batch.CronJob
policy.PodDisruptionBudget policy.Eviction coordination.Lease rbac.Role rbac.ClusterRole rbac.RoleBinding
rbac.ClusterRoleBinding discovery.EndpointSlice events.Event networking.NetworkPolicy networking.Ingress
networking.IngressClass storage.StorageClass storage.VolumeAttachment storage.CSIDriver storage.CSINode
scheduling.PriorityClass certificates.CertificateSigningRequest autoscaling.Scale
apiextensions.CustomResourceDefinition authentication.TokenReview authentication.TokenRequest
authentication.SelfSubjectReview authorization.SubjectAccessReview authorization.SelfSubjectAccessReview
authorization.LocalSubjectAccessReview authorization.SelfSubjectRulesReview`)

const header = "# How Go's encoder shows each API type of Kubernetes v1.37: `field=zero` is shown even when it is empty, `field~` is left\n" +
	"# out when it is empty, `:type` is where its own fields are listed (`[]` for a list of them, `{}` for a map)."

// A type as it stands in the source: a struct, or another name for something else.
type source struct {
	group   string
	imports map[string]string
	expr    ast.Expr
}

type field struct {
	name  string
	class string // struct, pointer, list, map, string, int, bool, time, quantity, intstr, bytes, other
	inner string // the struct behind it
	shown string // what is shown when it is empty; nothing when it is not
	drops bool   // left out when it is empty
}

type reader struct {
	types   map[string]source
	structs map[string][]field
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: shape MODULE-CACHE VERSION")
		os.Exit(2)
	}
	r := reader{types: map[string]source{}, structs: map[string][]field{}}
	for group, path := range packages {
		module, rest, _ := strings.Cut(path, "/")
		r.read(group, filepath.Join(os.Args[1], "k8s.io", module+"@"+os.Args[2], rest))
	}
	for name, s := range r.types {
		if _, ok := s.expr.(*ast.StructType); ok {
			r.fields(name)
		}
	}
	fmt.Println(header)
	r.print()
}

// read collects the types of one package.
func (r *reader) read(group, dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, file := range files {
		base := filepath.Base(file)
		if strings.HasSuffix(base, "_test.go") || strings.HasPrefix(base, "generated") || strings.HasPrefix(base, "zz_") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		imports := map[string]string{}
		for _, i := range parsed.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			alias := filepath.Base(path)
			if i.Name != nil {
				alias = i.Name.Name
			}
			for other, known := range packages {
				if path == "k8s.io/"+known {
					imports[alias] = other
				}
			}
		}
		for _, decl := range parsed.Decls {
			if types, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range types.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok {
						r.types[group+"."+t.Name.Name] = source{group, imports, t.Type}
					}
				}
			}
		}
	}
}

// classify says what an expression is, and which struct is behind it.
func (r *reader) classify(group string, imports map[string]string, expr ast.Expr) (string, string) {
	switch x := expr.(type) {
	case *ast.StarExpr:
		class, inner := r.classify(group, imports, x.X)
		if class != "struct" {
			inner = ""
		}
		return "pointer", inner
	case *ast.ArrayType:
		if item, ok := x.Elt.(*ast.Ident); ok && item.Name == "byte" {
			return "bytes", ""
		}
		return "list", r.item(group, imports, x.Elt)
	case *ast.MapType:
		return "map", r.item(group, imports, x.Value)
	case *ast.Ident:
		return r.named(group, x.Name)
	case *ast.SelectorExpr:
		pkg, _ := x.X.(*ast.Ident)
		if other, ok := imports[pkg.Name]; ok {
			return r.named(other, x.Sel.Name)
		}
		switch pkg.Name + "." + x.Sel.Name {
		case "resource.Quantity":
			return "quantity", ""
		case "intstr.IntOrString":
			return "intstr", ""
		case "types.UID", "types.NodeName":
			return "string", ""
		}
	}
	return "other", ""
}

func (r *reader) item(group string, imports map[string]string, expr ast.Expr) string {
	if class, inner := r.classify(group, imports, expr); class == "struct" {
		return inner
	}
	return ""
}

func (r *reader) named(group, name string) (string, string) {
	switch name {
	case "string", "bool":
		return name, ""
	case "int", "int32", "int64", "uint8", "uint16":
		return "int", ""
	}
	full := group + "." + name
	switch full {
	case "meta.Time", "meta.MicroTime":
		return "time", ""
	case "meta.Duration", "meta.FieldsV1":
		return "other", ""
	}
	s, ok := r.types[full]
	if !ok {
		return "other", ""
	}
	if _, ok := s.expr.(*ast.StructType); ok {
		return "struct", full
	}
	return r.classify(s.group, s.imports, s.expr)
}

// fields reads the json tags of a struct; embedded structs give theirs.
func (r *reader) fields(name string) []field {
	if known, ok := r.structs[name]; ok {
		return known
	}
	r.structs[name] = nil
	s := r.types[name]
	var out []field
	for _, f := range s.expr.(*ast.StructType).Fields.List {
		tag := ""
		if f.Tag != nil {
			tag = reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
		}
		parts := strings.Split(tag, ",")
		class, inner := r.classify(s.group, s.imports, f.Type)
		if parts[0] == "" && class == "struct" {
			if !strings.HasSuffix(inner, ".TypeMeta") {
				out = append(out, r.fields(inner)...)
			}
			continue
		}
		if parts[0] == "" || parts[0] == "-" {
			continue
		}
		omitEmpty := has(parts[1:], "omitempty")
		omitZero := has(parts[1:], "omitzero")
		shown := zero(class, omitEmpty)
		if omitZero {
			shown = ""
		}
		drops := shown == "" && class != "other" && class != "pointer" && (omitEmpty || omitZero)
		out = append(out, field{parts[0], class, inner, shown, drops})
	}
	r.structs[name] = out
	return out
}

func has(options []string, option string) bool {
	for _, o := range options {
		if o == option {
			return true
		}
	}
	return false
}

// zero is what the encoder shows for an empty field. `omitempty` does nothing for structs.
func zero(class string, omitEmpty bool) string {
	switch class {
	case "struct":
		return "{}"
	case "quantity":
		return `"0"`
	case "intstr":
		return "0"
	case "time":
		return "null"
	}
	if omitEmpty {
		return ""
	}
	switch class {
	case "string":
		return `""`
	case "int":
		return "0"
	case "bool":
		return "false"
	case "list", "map", "pointer", "bytes":
		return "null"
	}
	return ""
}

// print lists the types that say something, and lead from the roots.
func (r *reader) print() {
	useful := map[string]bool{}
	for changed := true; changed; {
		changed = false
		for name, fields := range r.structs {
			for _, f := range fields {
				if !useful[name] && (f.shown != "" || f.drops || useful[f.inner]) {
					useful[name], changed = true, true
				}
			}
		}
	}
	seen := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		if seen[name] || !useful[name] {
			return
		}
		seen[name] = true
		for _, f := range r.structs[name] {
			visit(f.inner)
		}
	}
	for _, root := range roots {
		visit(root)
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		items := []string{name}
		for _, f := range r.structs[name] {
			text := f.name
			if f.shown != "" {
				text += "=" + f.shown
			} else if f.drops {
				text += "~"
			}
			if useful[f.inner] {
				text += ":" + map[string]string{"list": "[]", "map": "{}"}[f.class] + f.inner
			}
			if text != f.name {
				items = append(items, text)
			}
		}
		fmt.Println(strings.Join(items, " "))
	}
}
