// Renders templates with Go's own text/template, for specd's tests to be held against.
//
//	go run oracle.go < golden.json > new.json && mv new.json golden.json
//
// The file is {"data": ..., "cases": [{"template": ...}, ...]}; what came of each template, given
// that data, is written into its "text" or "error".
// In the data, whole numbers are int, and {"$args": {...}}, {"$list": [...]}, {"$person": {...}}
// are values of the types below.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type Args map[string]any

func (a Args) String() string { return marshal(map[string]any(a)) }

type List []any

func (l List) String() string { return marshal([]any(l)) }

type Person struct {
	Name string
	Age  int
	Tags any
}

type kase struct {
	Template string  `json:"template"`
	Text     *string `json:"text,omitempty"`
	Error    string  `json:"error,omitempty"`
}

type golden struct {
	Data  json.RawMessage `json:"data"`
	Cases []kase          `json:"cases"`
}

func marshal(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func typed(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil && !strings.ContainsAny(v.String(), ".eE") {
			return int(n)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = typed(v[i])
		}
		return v
	case map[string]any:
		for k := range v {
			v[k] = typed(v[k])
		}
		if inner, ok := v["$args"].(map[string]any); ok {
			return Args(inner)
		}
		if inner, ok := v["$list"].([]any); ok {
			return List(inner)
		}
		if inner, ok := v["$person"].(map[string]any); ok {
			name, _ := inner["Name"].(string)
			age, _ := inner["Age"].(int)
			return Person{Name: name, Age: age, Tags: inner["Tags"]}
		}
		return v
	}
	return v
}

func (k *kase) run(raw json.RawMessage) {
	k.Text, k.Error = nil, ""
	var data any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&data); err != nil {
		panic(err)
	}
	funcs := template.FuncMap{"json": marshal}
	t, err := template.New("").Option("missingkey=zero").Funcs(funcs).Parse(k.Template)
	if err != nil {
		k.Error = err.Error()
		return
	}
	var out strings.Builder
	if err := t.Execute(&out, typed(data)); err != nil {
		k.Error = err.Error()
		return
	}
	text := out.String()
	k.Text = &text
}

func main() {
	var file golden
	if err := json.NewDecoder(os.Stdin).Decode(&file); err != nil {
		panic(err)
	}
	for i := range file.Cases {
		file.Cases[i].run(file.Data)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(file); err != nil {
		panic(err)
	}
}
